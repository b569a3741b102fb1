#pragma once

#include <cstdint>
#include <string>

#include "cuda/context.hpp"
#include "os/made_here.hpp"

namespace flowtrain::cuda {

/// Device memory shared by legacy IPC: one allocation and a handle, which is 64 bytes of plain
/// data. For devices and drivers that cannot export memory as a descriptor.
///
/// Memory:   device memory of its creator, freed in the creator's destructor, which must run after
///           every opener has closed.
/// Threads:  any; one at a time while a segment is made or closed.
/// Progress: making, opening and closing call the driver; freeing waits for the device.
/// Ordering: as VmmSegment.
/// Errors:   CudaError, also if the process that made a segment opens it, and on MIG slices.
class IpcSegment {
 public:
  static IpcSegment create(int device, std::uint64_t bytes);
  /// Maps a segment of another process.
  /// @param handle  Result of the creator's handle().
  static IpcSegment open(int device, const std::string& handle, std::uint64_t bytes);
  IpcSegment(IpcSegment&& other) noexcept;
  IpcSegment& operator=(IpcSegment&& other) noexcept;
  ~IpcSegment();

  /// Handle for other processes, of sizeof(CUipcMemHandle) bytes.
  std::string handle() const;

  CUdeviceptr address() const { return address_; }
  std::uint64_t bytes() const { return bytes_; }
  int device() const { return device_; }

 private:
  IpcSegment(int device, std::uint64_t bytes, bool owner)
      : device_(device), bytes_(bytes), owner_(owner) {}
  std::string text() const;

  int device_ = 0;
  std::uint64_t bytes_ = 0;
  bool owner_ = false;
  CUdeviceptr address_ = 0;
  os::MadeHere made_here_;
};

}  // namespace flowtrain::cuda
