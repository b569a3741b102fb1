#pragma once

#include <cstdint>
#include <string>

#include "cuda/context.hpp"
#include "os/fd.hpp"
#include "os/made_here.hpp"

namespace flowtrain::cuda {

/// Device memory that other processes can map: one physical allocation by virtual memory
/// management, exported as a POSIX descriptor.
///
/// Memory:   device memory; lives until every process that maps it has unmapped it.
/// Threads:  any; one at a time while a segment is made or closed.
/// Progress: making, importing and closing call the driver. Closing does not wait for copies: the
///           caller must have waited for them.
/// Ordering: none of its own; another process may read the writes of a stream after a StreamWord or
///           the host has signalled them.
/// Errors:   CudaError; BadArgument for 0 bytes, or more than the device has.
class VmmSegment {
 public:
  /// Makes a segment of `bytes`, rounded up to the device's granularity.
  static VmmSegment create(int device, std::uint64_t bytes);
  /// Maps a segment of another process; `bytes` is the creator's `bytes()`.
  static VmmSegment import(int device, const os::Fd& fd, std::uint64_t bytes);
  VmmSegment(VmmSegment&& other) noexcept;
  VmmSegment& operator=(VmmSegment&& other) noexcept;
  /// Unmaps the memory, then frees the address range and the handle.
  ~VmmSegment();

  /// A new descriptor for another process.
  os::Fd export_fd() const;

  CUdeviceptr address() const { return address_; }
  std::uint64_t bytes() const { return bytes_; }
  int device() const { return device_; }
  /// Whether it was allocated for GPUDirect RDMA.
  bool rdma() const { return rdma_; }

 private:
  VmmSegment(int device, std::uint64_t bytes, bool rdma)
      : device_(device), bytes_(bytes), rdma_(rdma) {}
  /// Reserves an address range, maps the handle there, and grants the device access.
  void map();
  std::string text() const;

  int device_ = 0;
  std::uint64_t bytes_ = 0;
  bool rdma_ = false;
  bool has_handle_ = false;
  bool mapped_ = false;
  CUmemGenericAllocationHandle handle_ = 0;
  CUdeviceptr address_ = 0;
  os::MadeHere made_here_;
};

}  // namespace flowtrain::cuda
