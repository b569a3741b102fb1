#pragma once

#include <cstddef>
#include <string>

#include "cuda/context.hpp"

namespace flowtrain::cuda {

/// Host memory that devices may read and write by themselves: page-locked and mapped, so that
/// copies run at the bus's speed and beside computation. Ends in its destructor, which must run
/// before the memory is unmapped and after the last copy.
///
/// Memory:   the caller's; the pages are locked as long as this lives.
/// Threads:  any.
/// Progress: locks each page, which takes long for gigabytes: done once, at set-up.
/// Ordering: none.
/// Errors:   CudaError where the device cannot, the memory is registered already, or no more
///           pages may be locked.
class HostRegistration {
 public:
  /// @param what  Names the memory in errors.
  HostRegistration(void* data, std::size_t bytes, int device, const std::string& what);
  HostRegistration(HostRegistration&& other) noexcept;
  HostRegistration& operator=(HostRegistration&& other) noexcept;
  ~HostRegistration();

  /// Address by which the device sees the memory.
  CUdeviceptr device_address() const { return device_address_; }
  void* data() const { return data_; }
  std::size_t bytes() const { return bytes_; }

 private:
  void* data_ = nullptr;
  std::size_t bytes_ = 0;
  int device_ = 0;
  CUdeviceptr device_address_ = 0;
  MadeHere made_here_;
};

}  // namespace flowtrain::cuda
