#pragma once

#include <algorithm>
#include <cstdint>
#include <utility>

#include "base/clock.hpp"
#include "base/deadline.hpp"
#include "channel/layout/descriptor.hpp"
#include "channel/telemetry/record.hpp"

namespace flowtrain::channel {

/// Whether lanes write records. Off only to measure their cost.
enum class Recording : bool { kOff, kOn };

/// Writes the events and durations of one lane into its record.
///
/// Samples fast items: after kBurst items in a row that are less than kFastNs apart, only one in
/// kStride is timed and recorded, by its producer's lane and then by its consumer's. Leases that
/// had to wait, aborts, and items that are given back, are always recorded. Recording all items
/// would cost 3 to 4 % of the hand-offs.
///
/// Memory:   the lane's record in the control file.
/// Threads:  one at a time.
/// Progress: wait-free.
/// Ordering: as in Histogram and FlightRecorder.
/// Errors:   none.
class Recorder {
 public:
  /// Sums over the timed items: their bytes, and the time to write them.
  struct Written {
    std::uint64_t bytes;
    std::uint64_t ns;
  };

  Recorder() = default;
  Recorder(LaneRecord& record, std::uint16_t lane, Recording recording)
      : record_(recording == Recording::kOn ? &record : nullptr), lane_(lane), last_ns_(now_ns()) {}

  /// @param since  Set when the wait for the slab began; null if there was none.
  /// @return  Time of the lease, for publishing(); 0 if the item is not timed.
  std::int64_t leased(const Deadline* since, std::uint32_t cell, std::uint64_t bytes) noexcept {
    if (!record_) return 0;
    const bool due = is_due();
    if (!due && !since) return 0;
    if (!due) read();
    record_->alloc_wait.add(since ? since->waited_ns() : 0);
    note({0, 0, bytes, cell, EventKind::kLeased, lane_});
    return last_ns_;
  }
  void aborted(std::uint32_t cell, std::uint64_t bytes) noexcept {
    if (!record_) return;
    read();
    note({0, 0, bytes, cell, EventKind::kAborted, lane_});
  }
  /// @return  Time of the publication; 0 if the item is not timed.
  std::int64_t publishing(std::int64_t leased_ns, std::uint64_t bytes) noexcept {
    if (!record_ || leased_ns == 0) return 0;
    const std::int64_t now = read();
    record_->transfer.add(now - leased_ns);
    written_.bytes += bytes;
    written_.ns += static_cast<std::uint64_t>(now - leased_ns);
    return now;
  }
  void published(std::int64_t leased_ns, std::uint32_t cell, std::uint64_t key_low,
                 std::uint64_t bytes) noexcept {
    if (!record_ || leased_ns == 0) return;
    note({0, key_low, bytes, cell, EventKind::kPublished, lane_});
  }
  /// @param published_ns  0 if the item is not timed.
  /// @return  Time of the taking, for released(); 0 if the item is not timed.
  std::int64_t taken(std::int64_t published_ns, std::uint32_t cell,
                     const Descriptor& item) noexcept {
    if (!record_ || published_ns == 0) return 0;
    const std::int64_t now = read();
    // Read from shared memory, so it may have any value.
    if (published_ns > 0 && published_ns <= now) record_->queue_wait.add(now - published_ns);
    note({0, item.key_low, item.bytes, cell, EventKind::kTaken, item.producer});
    return now;
  }
  void released(std::int64_t taken_ns, std::uint32_t cell, const Descriptor& item) noexcept {
    if (!record_ || taken_ns == 0) return;
    record_->use.add(read() - taken_ns);
    note({0, item.key_low, item.bytes, cell, EventKind::kReleased, item.producer});
  }
  void given_back(std::uint32_t cell, const Descriptor& item) noexcept {
    if (!record_) return;
    read();
    note({0, item.key_low, item.bytes, cell, EventKind::kRedelivered, item.producer});
  }
  const Written& written() const noexcept { return written_; }

 private:
  static constexpr std::int64_t kFastNs = 4000;
  static constexpr std::uint32_t kBurst = 64;
  static constexpr std::uint32_t kStride = 1024;

  /// Whether to time the next item; if so, reads the clock.
  bool is_due() noexcept {
    if (skip_ > 0) {
      --skip_;
      return false;
    }
    const std::int64_t items = fast_ > kBurst ? kStride : 1;
    const std::int64_t before = std::exchange(due_ns_, read());
    fast_ = due_ns_ - before < items * kFastNs ? std::min(fast_ + 1, kBurst + 1) : 0;
    if (fast_ > kBurst) skip_ = kStride - 1;
    return true;
  }
  std::int64_t read() noexcept { return last_ns_ = now_ns(); }
  void note(Event event) noexcept {
    event.time_ns = last_ns_;
    record_->flight.note(event);
  }

  LaneRecord* record_ = nullptr;
  Written written_{};
  std::uint16_t lane_ = 0;
  std::int64_t last_ns_ = 0;
  std::int64_t due_ns_ = 0;  ///< Time of the last item that was due.
  std::uint32_t fast_ = 0;   ///< Fast due items in a row.
  std::uint32_t skip_ = 0;   ///< Items until the next one is due.
};

}  // namespace flowtrain::channel
