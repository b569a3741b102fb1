#include "cuda/registration.hpp"

#include <utility>

#include "cuda/driver.hpp"

namespace flowtrain::cuda {

HostRegistration::HostRegistration(void* data, std::size_t bytes, int device,
                                   const std::string& what)
    : data_(data), bytes_(bytes), device_(device) {
  const ContextScope scope(device);
  const std::string which =
      what + " (" + std::to_string(bytes) + " bytes, " + device_text(device) + ")";
  // Portable: valid for every device of the process.
  const CUresult result = driver().MemHostRegister(
      data, bytes, CU_MEMHOSTREGISTER_PORTABLE | CU_MEMHOSTREGISTER_DEVICEMAP);
  if (result == CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED) {
    throw CudaError(which +
                    ": cuMemHostRegister: this memory, or a part of it, is already registered in "
                    "this process; register a mapping once and share the registration");
  }
  if (result == CUDA_ERROR_OUT_OF_MEMORY || result == CUDA_ERROR_NOT_PERMITTED) {
    check(result, "cuMemHostRegister",
          which + ": the pages cannot be locked; raise `ulimit -l` or register less");
  }
  check(result, "cuMemHostRegister", which);
  const CUresult found = driver().MemHostGetDevicePointer(&device_address_, data, 0);
  if (found != CUDA_SUCCESS) {
    static_cast<void>(driver().MemHostUnregister(data));
    check(found, "cuMemHostGetDevicePointer", which);
  }
}

HostRegistration::HostRegistration(HostRegistration&& other) noexcept
    : data_(std::exchange(other.data_, nullptr)),
      bytes_(std::exchange(other.bytes_, 0)),
      device_(other.device_),
      device_address_(std::exchange(other.device_address_, 0)),
      made_here_(other.made_here_) {}

HostRegistration& HostRegistration::operator=(HostRegistration&& other) noexcept {
  std::swap(data_, other.data_);
  std::swap(bytes_, other.bytes_);
  std::swap(device_, other.device_);
  std::swap(device_address_, other.device_address_);
  std::swap(made_here_, other.made_here_);
  return *this;
}

HostRegistration::~HostRegistration() {
  if (data_ == nullptr || !made_here_) return;
  try {
    const ContextScope scope(device_);
    static_cast<void>(driver().MemHostUnregister(data_));
  } catch (const Error&) {
    // The driver is shutting down, and has unlocked the pages itself.
  }
}

}  // namespace flowtrain::cuda
