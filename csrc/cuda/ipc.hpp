#pragma once

#include <cstdint>
#include <string>

#include "cuda/context.hpp"

namespace flowtrain::cuda {

/// Device memory shared by the older way: one allocation and a handle of 64 bytes, which is plain
/// data. For devices and drivers where memory cannot be exported as a descriptor.
///
/// Memory:   of the device and its maker: freed in the maker's destructor, which must run after
///           every opener has closed.
/// Threads:  any; a segment is used by one at a time while it is made or closed.
/// Progress: making, opening and closing call the driver; freeing waits for the device.
/// Ordering: as VmmSegment's.
/// Errors:   CudaError; the process that made a segment cannot open it, and MIG slices cannot
///           share memory so.
class IpcSegment {
 public:
  static IpcSegment create(int device, std::uint64_t bytes);
  /// Maps a segment of another process.
  /// @param handle  What its maker's handle() gave.
  static IpcSegment open(int device, const std::string& handle, std::uint64_t bytes);
  IpcSegment(IpcSegment&& other) noexcept;
  IpcSegment& operator=(IpcSegment&& other) noexcept;
  ~IpcSegment();

  /// The handle for other processes: sizeof(CUipcMemHandle) bytes.
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
  MadeHere made_here_;
};

}  // namespace flowtrain::cuda
