#pragma once

#include <cstddef>
#include <cstdint>

#include "memory/stream_steps.hpp"

namespace flowtrain::memory {

enum class Copies : bool { kNone, kToHost };

/// Page-locked memory of the host into which slabs of one device segment are copied, each to its
/// own offset, for readers that cannot access the device. Without copies, it only tells when the
/// data is there.
///
/// Memory:   with copies, as many bytes of the host as the segment has. Holds the segment's memory.
///           If it is destroyed while a fetch is under way, both stay until the process ends.
/// Threads:  one. The driver tells of finished copies on a thread of its own.
/// Progress: a fetch only enqueues. To make a staging locks its pages, which takes long for
///           gigabytes.
/// Ordering: fetches end in their order. Once `done` counts a fetch, its bytes can be read.
/// Errors:   CudaError. A device that fails may never finish a fetch: see check.
class Staging {
 public:
  Staging() = default;
  virtual ~Staging() = default;
  Staging(const Staging&) = delete;
  Staging& operator=(const Staging&) = delete;

  /// Without copies, an address of the device.
  virtual std::byte* data() const noexcept = 0;
  virtual std::uint64_t bytes() const noexcept = 0;
  /// The stream of the fetches. Let it wait for the write of a slab before the slab is fetched.
  virtual StreamHandle stream() const noexcept = 0;
  /// Copies bytes of the segment to the same offset here.
  virtual void fetch(std::uint64_t offset, std::uint64_t bytes) = 0;
  /// Fetches that are done.
  virtual std::uint64_t done() const noexcept = 0;
  /// Throws CudaError if the stream has failed.
  virtual void check() const = 0;
};

}  // namespace flowtrain::memory
