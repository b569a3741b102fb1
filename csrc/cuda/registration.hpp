#pragma once

#include <cstddef>
#include <string>

#include "cuda/context.hpp"
#include "os/made_here.hpp"

namespace flowtrain::cuda {

/// Registration of host memory with the devices: page-locked and mapped, so that copies are
/// asynchronous and run at the speed of the bus. The destructor must run after the last copy and
/// before the memory is unmapped.
///
/// Memory:   the caller's; its pages stay locked while this lives.
/// Threads:  any.
/// Progress: locks each page, which takes long for gigabytes: do it once, at set-up.
/// Ordering: none.
/// Errors:   CudaError if the device cannot register memory, the memory is already registered, or
///           the limit of locked pages is reached.
class HostRegistration {
 public:
  /// @param what  Names the memory in errors.
  HostRegistration(void* data, std::size_t bytes, int device, const std::string& what);
  HostRegistration(HostRegistration&& other) noexcept;
  HostRegistration& operator=(HostRegistration&& other) noexcept;
  ~HostRegistration();

  /// Address of the memory on the device.
  CUdeviceptr device_address() const { return device_address_; }
  void* data() const { return data_; }
  std::size_t bytes() const { return bytes_; }

 private:
  void* data_ = nullptr;
  std::size_t bytes_ = 0;
  int device_ = 0;
  CUdeviceptr device_address_ = 0;
  os::MadeHere made_here_;
};

}  // namespace flowtrain::cuda
