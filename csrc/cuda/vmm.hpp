#pragma once

#include <cstdint>
#include <string>

#include "cuda/context.hpp"
#include "os/fd.hpp"

namespace flowtrain::cuda {

/// Device memory that other processes can map: one physical allocation by virtual memory
/// management, exported as a POSIX descriptor.
///
/// Memory:   of the device; lives until every process that maps it has let go.
/// Threads:  any; a segment is used by one at a time while it is made or closed.
/// Progress: making, importing and closing call the driver, and closing waits for no copy: the
///           caller must know that none is under way.
/// Ordering: none of its own; what a stream wrote is another process's to read once it has been
///           told so, by a StreamWord or by the host.
/// Errors:   CudaError; no bytes, or more than the device has, is a BadArgument.
class VmmSegment {
 public:
  /// Makes a segment of at least `bytes`, rounded up to the device's granularity.
  static VmmSegment create(int device, std::uint64_t bytes);
  /// Maps a segment of another process; `bytes` is what its maker says.
  static VmmSegment import(int device, const os::Fd& fd, std::uint64_t bytes);
  VmmSegment(VmmSegment&& other) noexcept;
  VmmSegment& operator=(VmmSegment&& other) noexcept;
  /// Unmaps the memory, gives back the addresses, then the handle.
  ~VmmSegment();

  /// A descriptor for another process; each call makes a new one.
  os::Fd export_fd() const;

  CUdeviceptr address() const { return address_; }
  std::uint64_t bytes() const { return bytes_; }
  int device() const { return device_; }
  /// Whether it was made to be read and written by a network card.
  bool rdma() const { return rdma_; }

 private:
  VmmSegment(int device, std::uint64_t bytes, bool rdma)
      : device_(device), bytes_(bytes), rdma_(rdma) {}
  /// Reserves addresses, maps the handle there, and lets the device read and write.
  void map();
  std::string text() const;

  int device_ = 0;
  std::uint64_t bytes_ = 0;
  bool rdma_ = false;
  bool has_handle_ = false;
  bool mapped_ = false;
  CUmemGenericAllocationHandle handle_ = 0;
  CUdeviceptr address_ = 0;
  MadeHere made_here_;
};

}  // namespace flowtrain::cuda
