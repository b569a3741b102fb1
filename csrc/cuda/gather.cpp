#include "cuda/gather.hpp"

#include <string>

#include "base/error.hpp"
#include "cuda/context.hpp"

namespace flowtrain::cuda {
namespace {

void check(const RowCopy& copy, Float packed_dtype) {
  if (copy.packed % bytes_of(packed_dtype) != 0) {
    throw BadArgument("packed buffer: its address is not a multiple of the " +
                      std::to_string(bytes_of(packed_dtype)) + " bytes of an element");
  }
}

}  // namespace

void gather_rows(int device, CUdeviceptr packed, Float packed_dtype, const memory::PackedRows& rows,
                 Float slab_dtype, CUstream stream) {
  const RowCopy copy{rows, packed, true, slab_dtype, packed_dtype};
  check(copy, packed_dtype);
  const ContextScope scope(device);
  launch_copy(stream, copy);
}

void scatter_rows(int device, CUdeviceptr packed, Float packed_dtype,
                  const memory::PackedRows& rows, Float slab_dtype, CUstream stream) {
  rows.check_disjoint();
  const RowCopy copy{rows, packed, false, packed_dtype, slab_dtype};
  check(copy, packed_dtype);
  const ContextScope scope(device);
  launch_copy(stream, copy);
}

}  // namespace flowtrain::cuda
