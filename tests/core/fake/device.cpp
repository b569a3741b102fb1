#include <cstdio>

#include "call.hpp"

namespace fake {
namespace {

constexpr std::size_t kMemory = std::size_t{8} << 30;

CUresult init(unsigned) { return CUDA_SUCCESS; }
CUresult version(int* out) { return *out = 13000, CUDA_SUCCESS; }
CUresult error_name(CUresult result, const char** out) {
  *out = result == CUDA_ERROR_NOT_SUPPORTED ? "CUDA_ERROR_NOT_SUPPORTED" : "CUDA_ERROR_OTHER";
  return CUDA_SUCCESS;
}
CUresult error_string(CUresult, const char** out) { return *out = "said the fake", CUDA_SUCCESS; }
CUresult count(int* out) { return *out = 1, CUDA_SUCCESS; }
CUresult get_device(CUdevice* out, int number) { return *out = number, CUDA_SUCCESS; }
CUresult get_name(char* out, int size, CUdevice) {
  std::snprintf(out, static_cast<std::size_t>(size), "Fake");
  return CUDA_SUCCESS;
}
CUresult get_bus(char* out, int size, CUdevice) {
  std::snprintf(out, static_cast<std::size_t>(size), "0000:00:00.0");
  return CUDA_SUCCESS;
}
CUresult get_uuid(CUuuid* out, CUdevice) {
  for (int i = 0; i < 16; ++i) out->bytes[i] = static_cast<char>(0xf0 + i);
  return CUDA_SUCCESS;
}
CUresult total(std::size_t* out, CUdevice) { return *out = kMemory, CUDA_SUCCESS; }
CUresult attribute(int* out, CUdevice_attribute which, CUdevice) {
  *out = which == CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR ? 9 : 1;
  return CUDA_SUCCESS;
}
CUresult retain(CUcontext* out, CUdevice) {
  static int context = 0;
  return *out = reinterpret_cast<CUcontext>(&context), CUDA_SUCCESS;
}
CUresult push(CUcontext) { return ++contexts, CUDA_SUCCESS; }
CUresult pop(CUcontext*) { return --contexts, CUDA_SUCCESS; }

}  // namespace

Calls device_calls() {
  return {
      {"cuInit", pointer(init)},
      {"cuDriverGetVersion", pointer(version)},
      {"cuGetErrorName", pointer(error_name)},
      {"cuGetErrorString", pointer(error_string)},
      {"cuDeviceGetCount", pointer(count)},
      {"cuDeviceGet", pointer(get_device)},
      {"cuDeviceGetName", pointer(get_name)},
      {"cuDeviceGetUuid", pointer(get_uuid)},
      {"cuDeviceGetPCIBusId", pointer(get_bus)},
      {"cuDeviceTotalMem", pointer(total)},
      {"cuDeviceGetAttribute", pointer(attribute)},
      {"cuDevicePrimaryCtxRetain", pointer(retain)},
      {"cuCtxPushCurrent", pointer(push)},
      {"cuCtxPopCurrent", pointer(pop)},
  };
}

}  // namespace fake
