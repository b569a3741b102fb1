#include "cuda/copy.hpp"

#include <string>

#include "cuda/context.hpp"
#include "cuda/driver.hpp"

namespace flowtrain::cuda {
namespace {

std::string text(std::size_t bytes, int device) {
  return "copy of " + std::to_string(bytes) + " bytes, " + device_text(device);
}

}  // namespace

void copy_to_device(int device, CUdeviceptr target, const void* source, std::size_t bytes,
                    CUstream stream) {
  const ContextScope scope(device);
  FLOWTRAIN_CUDA(MemcpyHtoDAsync, text(bytes, device), target, source, bytes, stream);
}

void copy_to_host(int device, void* target, CUdeviceptr source, std::size_t bytes,
                  CUstream stream) {
  const ContextScope scope(device);
  FLOWTRAIN_CUDA(MemcpyDtoHAsync, text(bytes, device), target, source, bytes, stream);
}

void copy_on_device(int device, CUdeviceptr target, CUdeviceptr source, std::size_t bytes,
                    CUstream stream) {
  const ContextScope scope(device);
  FLOWTRAIN_CUDA(MemcpyDtoDAsync, text(bytes, device), target, source, bytes, stream);
}

void synchronize(int device, CUstream stream) {
  const ContextScope scope(device);
  FLOWTRAIN_CUDA(StreamSynchronize, device_text(device), stream);
}

}  // namespace flowtrain::cuda
