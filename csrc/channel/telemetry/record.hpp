#pragma once

#include <algorithm>
#include <atomic>
#include <bit>
#include <cstdint>

#include "base/cpu.hpp"
#include "base/math.hpp"
#include "base/relaxed.hpp"

namespace flowtrain::channel {

/// Histogram of durations by power of two: bucket b counts durations of [2^b, 2^(b+1)) ns, the last
/// bucket all longer ones too.
///
/// Memory:   placed in the control file; zero bytes are an empty histogram.
/// Threads:  one writer at a time; any number of readers, also after the writer's death.
/// Progress: wait-free.
/// Ordering: none; buckets and sum may differ by one duration while the writer lives.
/// Errors:   none.
struct alignas(kCacheLine) Histogram {
  static constexpr std::uint32_t kBuckets = 39;

  void add(std::int64_t ns) noexcept {
    const auto length = static_cast<std::uint64_t>(std::max<std::int64_t>(ns, 0));
    const auto width = static_cast<std::uint32_t>(std::bit_width(length | 1)) - 1;
    Relaxed<std::uint64_t>& count = counts[std::min(width, kBuckets - 1)];
    count = count + 1;
    sum_ns = sum_ns + length;
  }

  Relaxed<std::uint64_t> counts[kBuckets];
  Relaxed<std::uint64_t> sum_ns;
};

/// Kinds of events.
enum class EventKind : std::uint16_t {
  kLeased = 1,
  kAborted,
  kPublished,
  kTaken,
  kReleased,
  kRedelivered,  ///< By a reaper, for a dead lane.
  kFreed,        ///< By a reaper, for a dead lane.
};

struct Event {
  std::int64_t time_ns;
  std::uint64_t key_low;
  std::uint64_t bytes;
  std::uint32_t cell;
  EventKind kind;
  std::uint16_t lane;  ///< The producer's, or that of the dead participant.
};

/// The last events of a lane.
///
/// Memory:   placed in the control file, so that it can be read after a crash; zero bytes are an
///           empty recorder.
/// Threads:  one writer at a time; any number of readers.
/// Progress: wait-free.
/// Ordering: record.events publishes an event. A reader skips events overwritten meanwhile.
/// Errors:   none.
class FlightRecorder {
 public:
  static constexpr std::uint64_t kKept = 1024;

  void note(const Event& event) noexcept {
    const std::uint64_t n = written_.load(std::memory_order_relaxed);
    StoredEvent& stored = events_[n % kStored];
    prefetch_to_write(&stored + 4);  // Two lines ahead; past the last event it is harmless.
    // Pairs with the fence in for_each: a reader that sees a store below also sees the count of
    // all events before it, and so skips the event that is overwritten.
    std::atomic_thread_fence(std::memory_order_release);
    stored.time_ns = event.time_ns;
    stored.key_low = event.key_low;
    stored.bytes = event.bytes;
    stored.packed = packed_of(event);
    written_.store(n + 1, std::memory_order_release);  // sync: record.events
  }

  /// Calls `visit` with each of the last events, oldest first.
  template <class Visit>
  void for_each(Visit&& visit) const {
    const std::uint64_t end = written_.load(std::memory_order_acquire);  // sync: record.events
    for (std::uint64_t n = end > kKept ? end - kKept : 0; n < end; ++n) {
      const StoredEvent& stored = events_[n % kStored];
      const Event event = event_of(stored);
      std::atomic_thread_fence(std::memory_order_acquire);  // Pairs with the fence in note.
      if (written_.load(std::memory_order_relaxed) < n + kStored) visit(event);
    }
  }

 private:
  /// More than are kept, so that the event being written is not one of them.
  static constexpr std::uint64_t kStored = kKept + 16;

  struct StoredEvent {
    Relaxed<std::int64_t> time_ns;
    Relaxed<std::uint64_t> key_low;
    Relaxed<std::uint64_t> bytes;
    Relaxed<std::uint64_t> packed;  ///< Lane, kind and cell, in one store.
  };
  static_assert(sizeof(StoredEvent) == 32);

  static std::uint64_t packed_of(const Event& event) noexcept {
    return std::uint64_t{event.lane} << 48 | static_cast<std::uint64_t>(event.kind) << 32 |
           event.cell;
  }
  static Event event_of(const StoredEvent& stored) noexcept {
    const std::uint64_t packed = stored.packed;
    return {stored.time_ns,
            stored.key_low,
            stored.bytes,
            static_cast<std::uint32_t>(packed),
            static_cast<EventKind>(packed >> 32 & 0xFFFF),
            static_cast<std::uint16_t>(packed >> 48)};
  }

  alignas(kCacheLine) std::atomic<std::uint64_t> written_;
  StoredEvent events_[kStored];
};

/// Telemetry of a lane. Like the lane's counters it continues when the lane is reused, so that sums
/// never decrease.
struct LaneRecord {
  // Only of timed items, see Recorder.
  Histogram alloc_wait;  ///< Producer: from the request for a slab to the lease.
  Histogram transfer;  ///< Producer: from the lease to the publication, while the item is written.
  Histogram queue_wait;  ///< Consumer: from the publication to the taking.
  Histogram use;         ///< Consumer: from the taking to the release.
  FlightRecorder flight;
};

static_assert(sizeof(Histogram) == 5 * kCacheLine);

}  // namespace flowtrain::channel
