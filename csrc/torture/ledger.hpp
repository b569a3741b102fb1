#pragma once

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <cstdint>

#include "base/clock.hpp"
#include "base/math.hpp"
#include "os/shared_zeros.hpp"

namespace flowtrain::torture {

/// State of one participant. A participant that replaces a killed one takes over its slot.
struct alignas(kCacheLine) ParticipantSlot {
  std::atomic<std::uint32_t> window;     ///< Not 0 during a push, a pop or a reaper's decision.
  std::atomic<std::uint64_t> releasing;  ///< Item being released, plus 1; 0 for none.
};

/// Record of every item, outside the pool. Only the participant that publishes or releases an item
/// writes its entry.
///
/// Memory:   zeros, shared with forked children; an item has one byte in each table.
/// Threads:  any, in any processes.
/// Progress: wait-free.
/// Ordering: none; read after the last participant ended.
/// Errors:   SystemCallError if it cannot be mapped.
class Ledger {
 public:
  static constexpr std::uint64_t kMaxItems = std::uint64_t{1} << 28;
  static constexpr std::uint32_t kMaxParticipants = 256;

  struct Counters {
    std::atomic<std::uint64_t> next;
    alignas(kCacheLine) std::atomic<std::uint64_t> committed;
    std::atomic<std::int64_t> last_commit_ns;
    std::atomic<std::int64_t> longest_gap_ns;
    std::atomic<std::uint64_t> corrupt;
    std::atomic<std::uint64_t> shrunk;
    ParticipantSlot slots[kMaxParticipants];
  };
  using Marks = std::atomic<std::uint8_t>*;

  Counters& counters() const { return *reinterpret_cast<Counters*>(zeros_.data()); }
  Marks published() const { return reinterpret_cast<Marks>(zeros_.data() + kCountersBytes); }
  Marks committed() const { return published() + kMaxItems; }

  void note_commit(std::uint64_t item) const {
    Counters& all = counters();
    committed()[item].fetch_add(1, std::memory_order_relaxed);
    all.committed.fetch_add(1, std::memory_order_relaxed);
    const std::int64_t now = now_ns();
    const std::int64_t gap = now - all.last_commit_ns.exchange(now, std::memory_order_relaxed);
    std::int64_t longest = all.longest_gap_ns.load(std::memory_order_relaxed);
    while (gap > longest &&
           !all.longest_gap_ns.compare_exchange_weak(longest, gap, std::memory_order_relaxed)) {
    }
  }

 private:
  static constexpr std::size_t kCountersBytes = round_up(sizeof(Counters), kPageBytes);

  os::SharedZeros zeros_{kCountersBytes + 2 * kMaxItems, "torture: ledger"};
};

}  // namespace flowtrain::torture
