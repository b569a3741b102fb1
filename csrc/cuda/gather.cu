#include <cuda_runtime.h>

#include <algorithm>
#include <string>

#include "base/error.hpp"
#include "cuda/gather.hpp"
#include "cuda/gather_kernel.hpp"

namespace flowtrain::cuda {
namespace {

// Two sizes, as a launch takes longer the more bytes its parameters have.
using SmallTable = RowTable<336>;
static_assert(sizeof(SmallTable) <= 4096);
#if CUDART_VERSION >= 12010
using LargeTable = RowTable<2720>;
static_assert(sizeof(LargeTable) <= 32764);
#else
using LargeTable = SmallTable;  // The limit of 4 KiB was raised in CUDA 12.1.
#endif

constexpr RowSplit kSplit;

template <class From, class To, class Table>
__global__ void copy_rows_kernel(const __grid_constant__ Table table) {
  copy_rows<From, To>(DeviceThread(), table);
}

template <class From, class To, class Table>
void launch(CUstream stream, const RowCopy& copy) {
  const auto* kernel = reinterpret_cast<const void*>(&copy_rows_kernel<From, To, Table>);
  for_each_table<Table>(
      copy.rows, copy.packed, copy.gather, std::max(sizeof(From), sizeof(To)), kSplit,
      [&](Table& table, std::uint32_t blocks) {
        // Not by <<<>>>, which would copy the table once more.
        void* arguments[] = {&table};
        const cudaError_t error =
            cudaLaunchKernel(kernel, dim3(blocks), dim3(kSplit.threads), arguments, 0, stream);
        if (error != cudaSuccess) {
          throw CudaError(std::string("copy of rows: launch of ") + std::to_string(blocks) +
                          " blocks: " + cudaGetErrorName(error) + " (" + cudaGetErrorString(error) +
                          ")");
        }
      });
}

template <class From, class To>
void launch(CUstream stream, const RowCopy& copy) {
  if (copy.rows.entries().size() <= SmallTable::kCapacity) {
    launch<From, To, SmallTable>(stream, copy);
  } else {
    launch<From, To, LargeTable>(stream, copy);
  }
}

template <class From>
void launch_from(CUstream stream, const RowCopy& copy) {
  switch (copy.to) {
    case Float::kFloat32: return launch<From, float>(stream, copy);
    case Float::kBfloat16: return launch<From, Bfloat16>(stream, copy);
    case Float::kFloat16: return launch<From, Float16>(stream, copy);
  }
}

}  // namespace

void launch_copy(CUstream stream, const RowCopy& copy) {
  switch (copy.from) {
    case Float::kFloat32: return launch_from<float>(stream, copy);
    case Float::kBfloat16: return launch_from<Bfloat16>(stream, copy);
    case Float::kFloat16: return launch_from<Float16>(stream, copy);
  }
}

}  // namespace flowtrain::cuda
