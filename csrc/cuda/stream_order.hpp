#pragma once

#include <cuda.h>

#include <cstdint>

#include "memory/stream_page.hpp"

namespace flowtrain::cuda {

/// The steps of memory::StreamPage, enqueued on streams of one device. That header has the rules.
///
/// Memory:   the page's, registered with the device; both must outlive the work on the streams.
/// Threads:  as StreamPage.
/// Progress: only enqueues. A stream waits on the device, never its host.
/// Ordering: a stream's work before publish_on is visible to work after wait_written of any other
///           stream; work before release_on ends before StreamPage::may_write holds for the next
///           generation. Call publish_on before the descriptor is pushed, and release_on before the
///           cell is freed: then each wait is submitted after its write.
/// Errors:   CudaError; StaleAddress for a step out of order, which enqueues nothing.
class StreamOrder {
 public:
  /// @param address  Of the page on the device: see HostRegistration.
  StreamOrder(const memory::StreamPage& page, CUdeviceptr address, int device)
      : page_(page), address_(address), device_(device) {}

  /// Of the page on the device.
  CUdeviceptr address() const { return address_; }

  /// Enqueues the write of `written`, ordered after all earlier work of the stream.
  ///
  /// @param lane  Of the producer.
  void publish_on(CUstream stream, std::uint32_t slab, std::uint32_t generation,
                  std::uint32_t lane) const;
  /// Makes later work of the stream wait until the generation was written, or poisoned.
  void wait_written(CUstream stream, std::uint32_t slab, std::uint32_t generation) const;
  /// Enqueues the write of `read`, ordered after all earlier work of the stream. Also for a
  /// producer that aborts its lease.
  ///
  /// @param lane  Of the consumer, or of the producer that aborts.
  void release_on(CUstream stream, std::uint32_t slab, std::uint32_t generation,
                  std::uint32_t lane) const;

 private:
  void check(std::uint32_t slab) const;
  CUdeviceptr address_of(const std::atomic<memory::StreamWord>& word) const;

  memory::StreamPage page_;
  CUdeviceptr address_;
  int device_;
};

}  // namespace flowtrain::cuda
