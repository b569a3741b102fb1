#pragma once

#include <cstdint>

namespace flowtrain::memory {

/// A stream of a device, by the handle of its driver.
using StreamHandle = std::uintptr_t;
/// In place of a stream: the host's device work has ended, or there was none.
inline constexpr StreamHandle kByHost = UINTPTR_MAX;

/// The steps of StreamPage, enqueued on streams of one device. That header has the rules.
///
/// Memory:   the page's; it must outlive the work on the streams, and so must this.
/// Threads:  as StreamPage.
/// Progress: only enqueues, but synchronize. A stream waits on the device, never its host.
/// Ordering: a stream's work before publish_on is visible to work after wait_written of any other
///           stream; work before release_on ends before StreamPage::is_free holds again. Call
///           publish_on before the descriptor is pushed, and release_on before the cell is freed:
///           then each wait is submitted after its write.
/// Errors:   CudaError; StaleAddress for a step out of order, which enqueues nothing.
class StreamSteps {
 public:
  StreamSteps() = default;
  virtual ~StreamSteps() = default;
  StreamSteps(const StreamSteps&) = delete;
  StreamSteps& operator=(const StreamSteps&) = delete;

  /// Enqueues the write of `written`, ordered after all earlier work of the stream.
  ///
  /// @param lane  Of the producer.
  virtual void publish_on(StreamHandle stream, std::uint32_t slab, std::uint32_t generation,
                          std::uint32_t lane) const = 0;
  /// Makes later work of the stream wait until the generation was written, or poisoned.
  virtual void wait_written(StreamHandle stream, std::uint32_t slab,
                            std::uint32_t generation) const = 0;
  /// Enqueues the write of `read`, ordered after all earlier work of the stream. Also for a
  /// producer that aborts its lease.
  ///
  /// @param lane  Of the consumer, or of the producer that aborts.
  virtual void release_on(StreamHandle stream, std::uint32_t slab, std::uint32_t generation,
                          std::uint32_t lane) const = 0;
  /// Waits on the host until the stream has done all of its work.
  virtual void synchronize(StreamHandle stream) const = 0;
};

}  // namespace flowtrain::memory
