#include "cuda/gather.hpp"

#include <string>

#include "base/error.hpp"
#include "cuda/context.hpp"

namespace flowtrain::cuda {
namespace {

constexpr std::uint32_t kMostThreads = 1024;
constexpr std::uint32_t kMostWarpBytes = 1U << 20;

void check(const RowCopy& copy, Float packed_dtype) {
  if (copy.packed % bytes_of(packed_dtype) != 0) {
    throw BadArgument("packed buffer: its address is not a multiple of the " +
                      std::to_string(bytes_of(packed_dtype)) + " bytes of an element");
  }
  const RowSplit& split = copy.split;
  if (split.threads % kWarp != 0 || split.threads < kWarp || split.threads > kMostThreads) {
    throw BadArgument("threads=" + std::to_string(split.threads) + ": must be a multiple of " +
                      std::to_string(kWarp) + " up to " + std::to_string(kMostThreads));
  }
  // A multiple of 16, so that only the ends of slabs can be at odd addresses.
  if (split.warp_bytes % 16 != 0 || split.warp_bytes == 0 || split.warp_bytes > kMostWarpBytes) {
    throw BadArgument("warp_bytes=" + std::to_string(split.warp_bytes) +
                      ": must be a multiple of 16 up to " + std::to_string(kMostWarpBytes));
  }
}

}  // namespace

void gather_rows(int device, CUdeviceptr packed, Float packed_dtype, const memory::PackedRows& rows,
                 Float slab_dtype, CUstream stream, const RowSplit& split) {
  const RowCopy copy{rows, packed, true, slab_dtype, packed_dtype, split};
  check(copy, packed_dtype);
  const ContextScope scope(device);
  launch_copy(stream, copy);
}

void scatter_rows(int device, CUdeviceptr packed, Float packed_dtype,
                  const memory::PackedRows& rows, Float slab_dtype, CUstream stream,
                  const RowSplit& split) {
  rows.check_disjoint();
  const RowCopy copy{rows, packed, false, packed_dtype, slab_dtype, split};
  check(copy, packed_dtype);
  const ContextScope scope(device);
  launch_copy(stream, copy);
}

}  // namespace flowtrain::cuda
