#include "cuda/context.hpp"

#include <map>
#include <mutex>

#include "cuda/driver.hpp"

namespace flowtrain::cuda {
namespace {

CUcontext primary_context(int device) {
  static auto* mutex = new std::mutex;
  static auto* contexts = new std::map<int, CUcontext>;
  const std::lock_guard lock(*mutex);
  const auto found = contexts->find(device);
  if (found != contexts->end()) return found->second;
  CUcontext context = nullptr;
  FLOWTRAIN_CUDA(DevicePrimaryCtxRetain, device_text(device), &context, device_handle(device));
  return contexts->emplace(device, context).first->second;
}

}  // namespace

std::string device_text(int device) { return "device " + std::to_string(device); }

CUdevice device_handle(int device) {
  const Driver& calls = driver();
  if (device < 0 || device >= device_count()) {
    throw BadArgument("device=" + std::to_string(device) + ": this process sees " +
                      std::to_string(device_count()) +
                      "; count from 0, and see CUDA_VISIBLE_DEVICES");
  }
  CUdevice handle = 0;
  check(calls.DeviceGet(&handle, device), "cuDeviceGet", device_text(device));
  return handle;
}

ContextScope::ContextScope(int device) {
  FLOWTRAIN_CUDA(CtxPushCurrent, device_text(device), primary_context(device));
}

ContextScope::~ContextScope() {
  CUcontext popped = nullptr;
  // A driver that is shutting down refuses; then no context is current anyway.
  static_cast<void>(driver().CtxPopCurrent(&popped));
}

}  // namespace flowtrain::cuda
