#pragma once

#include <algorithm>
#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <set>

#include "base/clock.hpp"
#include "channel/cells/release.hpp"
#include "channel/layout/control.hpp"
#include "channel/liveness/stream_work.hpp"

namespace flowtrain::channel {

/// Points between two reads of a reaper, at which other participants may move the cell. Each names
/// the result of the read before it.
enum class ReapPoint { kNotPublishing, kNotInRing, kNotTaking };

/// The shipped behaviour. The torture test delays the reaper at its points, and omits its checks.
struct ReapRules {
  using Hooks = lockfree::NoHooks;
  static constexpr bool kChecksAgain = true;
  static void at(ReapPoint) noexcept {}
};

/// The *reaper* of a dead lane: reclaims the cells that the lane held.
///
/// Memory:   the pool's control tables.
/// Threads:  one at a time over all processes, by PoolLock::kRecovery.
/// Progress: never waits for another participant.
/// Ordering: cell.word, ring.slot, lane.publishing and lane.taking, as in IndexRing.
/// Errors:   never throws; if it cannot allocate memory of its own, the process ends.
///
/// The rule for each cell of the dead lane, by the cell's state:
///   - kLeased: freed.
///   - kTaken: redelivered.
///   - kPublished and in its ring: left there.
///   - kPublished, not in its ring, and a living lane is taking it: the reaper runs again later.
///   - kPublished, not in its ring, and a dead lane was taking it: left to the rule below.
///   - kPublished, not in its ring, otherwise: it never entered the ring. Freed if the dead lane
///     leased it, else published again.
/// The rule for each cell that the dead lane was taking:
///   - not kPublished, or in its ring: left alone.
///   - kPublished, not in its ring, and a living lane is moving it: the reaper runs again later.
///   - kPublished, not in its ring, otherwise: redelivered.
/// Slabs in memory of a device follow memory::StreamPage: the caller has settled the lane. A cell
/// is freed instead of redelivered if its generation was read. Numbers of cells, lanes or rings
/// that do not exist, as in a damaged file, are ignored. A cell whose ring does not exist is freed
/// instead of redelivered.
template <class Rules>
class Reaper {
 public:
  Reaper(const Control& control, std::uint16_t dead, std::uint16_t own_lane,
         const std::function<bool(std::uint16_t)>& alive)
      : control_(control), dead_(dead), own_lane_(own_lane), alive_(alive) {}

  /// Returns whether all cells are settled. False if a living lane is moving one of them: the
  /// caller retries later.
  bool run() noexcept {
    std::map<std::uint32_t, CellWord> marked;
    std::set<std::uint16_t> rings;
    for (std::uint32_t c = 0; c < control_.num_cells(); ++c) {
      const CellWord word = word_of(c);
      if (lockfree::owner_of(word) != dead_) continue;
      switch (lockfree::state_of(word)) {
        case CellState::kFree: break;
        case CellState::kLeased: free(c); break;
        case CellState::kTaken: redeliver(c); break;
        case CellState::kPublished:
          marked.emplace(c, word);
          if (const auto ring = ring_of(c)) rings.insert(*ring);
          break;
      }
    }
    // Cells in a ring stay there. One pass over each ring finds nearly all of them.
    for (const std::uint16_t ring : rings) {
      control_.ring(ring).for_each([&](const lockfree::Run& run) {
        marked.erase(marked.lower_bound(run.first), marked.lower_bound(run.first + run.count));
      });
    }
    bool done = true;
    for (const auto& [c, word] : marked) done &= settle_marked(c, word);
    lockfree::LaneIntent& intent = control_.lane(dead_).intent;
    const auto taking =
        lockfree::run_of(intent.taking.load(std::memory_order_acquire));  // sync: lane.taking
    const std::uint32_t end = std::min(taking.first + taking.count, control_.num_cells());
    for (std::uint32_t c = taking.first; c < end; ++c) done &= settle_taking(c);
    if (!done) return false;
    intent.publishing.store(0, std::memory_order_release);  // sync: lane.publishing
    intent.taking.store(0, std::memory_order_release);      // sync: lane.taking
    return true;
  }

 private:
  using CellState = lockfree::CellState;
  using CellWord = lockfree::CellWord;
  enum class Taker { kNone, kDead, kLiving };

  /// Settles a cell that the dead lane marked as published: it is in the ring, was taken, or never
  /// entered the ring.
  bool settle_marked(std::uint32_t c, CellWord seen) noexcept {
    if (in_ring(c)) return true;
    Rules::at(ReapPoint::kNotInRing);
    switch (taker_of(c)) {
      case Taker::kLiving: return false;
      case Taker::kDead: return true;  // Settled with that lane.
      case Taker::kNone: break;
    }
    Rules::at(ReapPoint::kNotTaking);
    // The cell may have moved between the read of the ring and the read of the lanes' intents.
    if (Rules::kChecksAgain && (in_ring(c) || word_of(c) != seen)) return false;
    if (control_.cell(c).producer == dead_) {
      free(c);
    } else {
      // The dead lane was a reaper, or a consumer that put the item back.
      publish_again(c);
    }
    return true;
  }

  /// Settles a cell that the dead lane was taking: it was taken and never used, or not taken.
  bool settle_taking(std::uint32_t c) noexcept {
    const CellWord seen = word_of(c);
    if (lockfree::state_of(seen) != CellState::kPublished) return true;
    const std::uint16_t producer = lockfree::owner_of(seen);
    // While a cell's publisher is publishing it, a cell that was taken cannot be told from one that
    // is not in the ring yet. This check comes before the read of the ring: so a cell that is then
    // not in the ring had entered it, and was taken.
    if (producer < control_.geometry().max_lanes) {
      const lockfree::LaneIntent& from = control_.lane(producer).intent;
      const auto moving = lockfree::run_of(
          from.publishing.load(std::memory_order_acquire));  // sync: lane.publishing
      if (moving.holds(c) && alive_(producer)) return false;
    }
    Rules::at(ReapPoint::kNotPublishing);
    if (in_ring(c)) return true;
    Rules::at(ReapPoint::kNotInRing);
    if (taker_of(c) == Taker::kLiving) return false;
    Rules::at(ReapPoint::kNotTaking);
    if (Rules::kChecksAgain && (in_ring(c) || word_of(c) != seen)) return false;
    redeliver(c);
    return true;
  }

  void free(std::uint32_t c) noexcept {
    // An item that was never published has no key.
    control_.record(own_lane_).flight.note(
        {now_ns(), 0, control_.cell(c).slab_bytes, c, EventKind::kFreed, dead_});
    release_cell(control_, c);
  }

  void redeliver(std::uint32_t c) noexcept {
    Cell& cell = control_.cell(c);
    if (is_on_device(control_, c) &&
        control_.streams().read(c, cell.descriptor.generation) != memory::Progress::kPending) {
      return free(c);
    }
    cell.attempt = cell.attempt + 1;
    publish_again(c);
  }

  void publish_again(std::uint32_t c) noexcept {
    Lane& lane = control_.lane(own_lane_);
    const Descriptor& item = control_.cell(c).descriptor;
    const std::optional<std::uint16_t> ring = ring_of(c);
    if (!ring) return free(c);
    control_.record(own_lane_).flight.note(
        {now_ns(), item.key_low, item.bytes, c, EventKind::kRedelivered, dead_});
    // A ring has a slot for every cell: only a damaged one is full.
    if (!control_.ring<typename Rules::Hooks>(*ring).push(c, own_lane_, lane.intent))
      return free(c);
    lane.items_redelivered.fetch_add(1, std::memory_order_relaxed);
    control_.ring_header(*ring).filled.notify();
  }

  CellWord word_of(std::uint32_t c) const noexcept {
    return control_.word(c).load(std::memory_order_acquire);  // sync: cell.word
  }

  bool in_ring(std::uint32_t c) const noexcept {
    const std::optional<std::uint16_t> ring = ring_of(c);
    return ring && control_.ring(*ring).contains(c);
  }

  /// The ring that a cell was published to.
  std::optional<std::uint16_t> ring_of(std::uint32_t c) const noexcept {
    const std::uint16_t ring = control_.cell(c).ring;
    if (ring >= control_.geometry().num_rings) return std::nullopt;
    return ring;
  }

  Taker taker_of(std::uint32_t c) const noexcept {
    Taker found = Taker::kNone;
    for (std::uint32_t i = 0; i < control_.geometry().max_lanes; ++i) {
      const lockfree::LaneIntent& intent = control_.lane(i).intent;
      const auto taking =
          lockfree::run_of(intent.taking.load(std::memory_order_acquire));  // sync: lane.taking
      if (!taking.holds(c)) continue;
      if (alive_(static_cast<std::uint16_t>(i))) return Taker::kLiving;
      found = Taker::kDead;
    }
    return found;
  }

  const Control& control_;
  std::uint16_t dead_;
  std::uint16_t own_lane_;
  const std::function<bool(std::uint16_t)>& alive_;
};

/// Reclaims the cells of lane `dead`.
///
/// @param own_lane  Lane of the caller, under which cells are redelivered.
/// @param alive     Whether the process of a lane lives, by its byte lock.
/// @return  As Reaper::run.
template <class Rules = ReapRules>
bool reap(const Control& control, std::uint16_t dead, std::uint16_t own_lane,
          const std::function<bool(std::uint16_t)>& alive) noexcept {
  return Reaper<Rules>(control, dead, own_lane, alive).run();
}

}  // namespace flowtrain::channel
