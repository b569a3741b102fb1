#pragma once

#include <algorithm>
#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <set>

#include "base/clock.hpp"
#include "channel/control.hpp"

namespace flowtrain::channel {

/// Points between two looks of a reaper, at which anything may happen to the cell.
enum class ReapPoint { kNotPublishing, kNotInRing, kNotTaking };

/// How a reaper works: what is shipped. Torture delays it, and shows what each look is for.
struct ReapRules {
  using Hooks = lockfree::NoHooks;
  static constexpr bool kChecksAgain = true;
  static void at(ReapPoint) noexcept {}
};

/// Takes back what a dead lane held, by the rules below.
///
/// Memory:   the pool's control tables.
/// Threads:  one reaper at a time over all processes, by the reaper's byte lock.
/// Progress: never waits for another participant.
/// Ordering: cell.word, ring.slot, lane.publishing and lane.taking, as in IndexRing.
/// Errors:   never throws.
///
/// A cell that the dead lane
///   - was writing is freed;
///   - was reading is delivered again;
///   - had marked as published stays, if it is in the ring, and is left to the rule below, if a
///     dead lane intended to take it; else that publishing never happened: it is freed, or, where
///     another lane had published it before, published again;
///   - intended to take is delivered again, if it is in no ring and nobody alive is moving it.
/// What names a cell, a lane or a ring that there is not, as a damaged file may, is passed over; a
/// cell that would be delivered again to no ring is freed.
template <class Rules>
class Reaper {
 public:
  Reaper(const Control& control, std::uint16_t dead, std::uint16_t mine,
         const std::function<bool(std::uint16_t)>& alive)
      : control_(control), dead_(dead), mine_(mine), alive_(alive) {}

  /// True if nothing is left to do; false to be called again, because a living lane is in the
  /// middle of moving one of the cells.
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
    // One walk finds nearly all of them, however many there are.
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
    for (std::uint32_t c = taking.first; c < end; ++c) done &= settle_intended(c);
    if (!done) return false;
    intent.publishing.store(0, std::memory_order_release);  // sync: lane.publishing
    intent.taking.store(0, std::memory_order_release);      // sync: lane.taking
    return true;
  }

 private:
  using CellState = lockfree::CellState;
  using CellWord = lockfree::CellWord;
  enum class Intended { kByNobody, kByDead, kByLiving };

  /// A cell that the dead lane marked as published: in the ring, taken, or never published.
  bool settle_marked(std::uint32_t c, CellWord seen) noexcept {
    if (in_ring(c)) return true;
    Rules::at(ReapPoint::kNotInRing);
    switch (intent_on(c)) {
      case Intended::kByLiving: return false;
      case Intended::kByDead: return true;  // Settled with the lane that intended to take it.
      case Intended::kByNobody: break;
    }
    Rules::at(ReapPoint::kNotTaking);
    // Between the look at the ring and the look at the intents it may have moved on.
    if (Rules::kChecksAgain && (in_ring(c) || word_of(c) != seen)) return false;
    if (control_.cell(c).producer == dead_) {
      free(c);
    } else {
      // It was published before: the dead lane was a reaper, or a consumer that put it back.
      publish_again(c);
    }
    return true;
  }

  /// A cell that the dead lane intended to take: taken and never used, or not taken.
  bool settle_intended(std::uint32_t c) noexcept {
    const CellWord seen = word_of(c);
    if (lockfree::state_of(seen) != CellState::kPublished) return true;
    const std::uint16_t producer = lockfree::owner_of(seen);
    // While its producer still pins it, nobody can tell a cell that was taken from one that is
    // about to be published. Before the look at the ring: a cell that is not in it was taken
    // only if it had been published by then.
    if (producer < control_.geometry().max_lanes) {
      const lockfree::LaneIntent& from = control_.lane(producer).intent;
      const auto pinned = lockfree::run_of(
          from.publishing.load(std::memory_order_acquire));  // sync: lane.publishing
      if (pinned.holds(c) && alive_(producer)) return false;
    }
    Rules::at(ReapPoint::kNotPublishing);
    if (in_ring(c)) return true;
    Rules::at(ReapPoint::kNotInRing);
    if (intent_on(c) == Intended::kByLiving) return false;
    Rules::at(ReapPoint::kNotTaking);
    if (Rules::kChecksAgain && (in_ring(c) || word_of(c) != seen)) return false;
    redeliver(c);
    return true;
  }

  void free(std::uint32_t c) noexcept {
    // What was not published has no key.
    control_.record(mine_).flight.note(
        {now_ns(), 0, control_.cell(c).slab_bytes, c, Act::kFreed, dead_});
    control_.release_cell(c);
  }

  void redeliver(std::uint32_t c) noexcept {
    Cell& cell = control_.cell(c);
    cell.attempt = cell.attempt + 1;
    publish_again(c);
  }

  void publish_again(std::uint32_t c) noexcept {
    Lane& mine = control_.lane(mine_);
    const Descriptor& item = control_.cell(c).descriptor;
    const std::optional<std::uint16_t> ring = ring_of(c);
    if (!ring) return free(c);
    control_.record(mine_).flight.note(
        {now_ns(), item.key_low, item.bytes, c, Act::kRedelivered, dead_});
    // A ring has a slot for every cell: only one that was damaged is full.
    if (!control_.ring<typename Rules::Hooks>(*ring).push(c, mine_, mine.intent)) return free(c);
    mine.items_redelivered.fetch_add(1, std::memory_order_relaxed);
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

  Intended intent_on(std::uint32_t c) const noexcept {
    Intended found = Intended::kByNobody;
    for (std::uint32_t i = 0; i < control_.geometry().max_lanes; ++i) {
      const lockfree::LaneIntent& intent = control_.lane(i).intent;
      const auto taking =
          lockfree::run_of(intent.taking.load(std::memory_order_acquire));  // sync: lane.taking
      if (!taking.holds(c)) continue;
      if (alive_(static_cast<std::uint16_t>(i))) return Intended::kByLiving;
      found = Intended::kByDead;
    }
    return found;
  }

  const Control& control_;
  std::uint16_t dead_;
  std::uint16_t mine_;
  const std::function<bool(std::uint16_t)>& alive_;
};

/// @param mine   Lane of the caller, under which cells are delivered again.
/// @param alive  Whether a lane's process lives, by the kernel's word.
/// @return  As Reaper::run.
template <class Rules = ReapRules>
bool reap(const Control& control, std::uint16_t dead, std::uint16_t mine,
          const std::function<bool(std::uint16_t)>& alive) noexcept {
  return Reaper<Rules>(control, dead, mine, alive).run();
}

}  // namespace flowtrain::channel
