#include <cuda_runtime.h>

#include "base/error.hpp"
#include "cuda/word.hpp"

namespace flowtrain::cuda {
namespace {

__global__ void store_word(std::uint64_t* address, std::uint64_t value) {
  // System-wide release: pairs with the acquire of StreamWord::load.
  asm volatile("st.release.sys.global.u64 [%0], %1;" ::"l"(address), "l"(value) : "memory");
}

}  // namespace

void launch_store(CUstream stream, CUdeviceptr address, std::uint64_t value) {
  store_word<<<1, 1, 0, stream>>>(reinterpret_cast<std::uint64_t*>(address), value);
  if (const cudaError_t error = cudaGetLastError(); error != cudaSuccess) {
    throw CudaError(std::string("stream word: launch of store_word: ") + cudaGetErrorName(error) +
                    " (" + cudaGetErrorString(error) + ")");
  }
}

}  // namespace flowtrain::cuda
