#include "cuda/driver.hpp"

#include <dlfcn.h>

#include <optional>

namespace flowtrain::cuda {
namespace {

constexpr const char* kLibrary = "libcuda.so.1";

/// Result of opening the driver, once per process.
struct Opened {
  Driver driver;
  std::string why_not;
  int version = 0;
  int devices = 0;
};

/// Name of a result; an older driver may not know it.
std::string name_of(const Driver& driver, CUresult result) {
  const char* name = nullptr;
  const char* text = nullptr;
  if (driver.GetErrorName == nullptr || driver.GetErrorName(result, &name) != CUDA_SUCCESS) {
    return "result " + std::to_string(static_cast<int>(result));
  }
  if (driver.GetErrorString(result, &text) != CUDA_SUCCESS) return name;
  return std::string(name) + " (" + text + ")";
}

/// Fills the table. Returns the name of the first function that the driver lacks, if any.
std::optional<std::string> fill(Driver& driver, PFN_cuGetProcAddress_v12000 find) {
  const auto get = [&](const char* name, int version) -> void* {
    void* found = nullptr;
    CUdriverProcAddressQueryResult status{};
    const CUresult result = find(name, &found, version, CU_GET_PROC_ADDRESS_LEGACY_STREAM, &status);
    return result == CUDA_SUCCESS && status == CU_GET_PROC_ADDRESS_SUCCESS ? found : nullptr;
  };
#define FLOWTRAIN_CUDA_FIND(name, version)                                             \
  driver.name = reinterpret_cast<PFN_cu##name##_v##version>(get("cu" #name, version)); \
  if (driver.name == nullptr) return "cu" #name;
  FLOWTRAIN_CUDA_CALLS(FLOWTRAIN_CUDA_FIND)
#undef FLOWTRAIN_CUDA_FIND
  return std::nullopt;
}

Opened open() {
  Opened out;
  void* library = ::dlopen(kLibrary, RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr) {
    const char* error = ::dlerror();
    out.why_not = std::string("no NVIDIA driver: ") + (error != nullptr ? error : kLibrary) +
                  "; install the driver, or start the container with its GPUs "
                  "(docker run --gpus all)";
    return out;
  }
  // Never closed: other libraries, such as torch, may still have contexts.
  const auto find =
      reinterpret_cast<PFN_cuGetProcAddress_v12000>(::dlsym(library, "cuGetProcAddress_v2"));
  if (find == nullptr) {
    out.why_not = std::string(kLibrary) + ": older than CUDA 12.0, the minimum; update the driver";
    return out;
  }
  if (const auto missing = fill(out.driver, find)) {
    out.why_not = std::string(kLibrary) + ": it lacks " + *missing + "; update the driver";
    return out;
  }
  if (const CUresult result = out.driver.Init(0); result != CUDA_SUCCESS) {
    out.why_not =
        "cuInit: " + name_of(out.driver, result) +
        "; check nvidia-smi, CUDA_VISIBLE_DEVICES, and whether this process was forked from one "
        "that uses CUDA";
    return out;
  }
  out.driver.DriverGetVersion(&out.version);
  const CUresult result = out.driver.DeviceGetCount(&out.devices);
  if (result != CUDA_SUCCESS || out.devices == 0) {
    out.devices = 0;
    out.why_not = "the driver sees no device; check nvidia-smi and CUDA_VISIBLE_DEVICES";
  }
  return out;
}

const Opened& opened() {
  // Never destroyed: handles freed at the end of the process still call the driver.
  static const auto* instance = new Opened(open());
  return *instance;
}

}  // namespace

const Driver& driver() {
  const Opened& found = opened();
  if (!found.why_not.empty()) throw CudaError("CUDA cannot be used: " + found.why_not);
  return found.driver;
}

std::string why_not() { return opened().why_not; }

int driver_version() { return opened().version; }

int device_count() { return opened().devices; }

void check(CUresult result, const char* call, const std::string& what) {
  if (result == CUDA_SUCCESS) return;
  throw CudaError(what + ": " + call + ": " + name_of(opened().driver, result));
}

void check_memory(CUresult result, const char* call, const std::string& what) {
  if (result == CUDA_ERROR_OUT_OF_MEMORY) {
    throw PoolSpace(what + ": " + call + ": the device has no such memory left; make the segment " +
                    "smaller, or free memory of the device, as of torch.cuda.empty_cache()");
  }
  check(result, call, what);
}

}  // namespace flowtrain::cuda
