#include "channel/reaper.hpp"

#include <optional>

namespace flowtrain::channel {
namespace {

using lockfree::CellState;
using lockfree::CellWord;

enum class Intended { kByNobody, kByDead, kByLiving };

class Reaper {
 public:
  Reaper(Pool& pool, std::uint16_t dead)
      : pool_(pool), control_(pool.control()), dead_(dead), lane_(control_.lane(dead)) {}

  bool run() noexcept {
    bool done = true;
    for (std::uint32_t c = 0; c < control_.num_cells(); ++c) {
      const CellWord word = control_.word(c).load(std::memory_order_acquire);  // sync: cell.word
      if (lockfree::owner_of(word) != dead_) continue;
      switch (lockfree::state_of(word)) {
        case CellState::kFree: break;
        case CellState::kOwned: pool_.free_cell(c); break;
        case CellState::kHeld: redeliver(c); break;
        case CellState::kInRing: done &= settle_published(c, word); break;
      }
    }
    const std::uint32_t cin = lane_.intent.cin.load(std::memory_order_acquire);  // sync: lane.cin
    if (cin != 0) done &= settle_intended(cin - 1);
    if (!done) return false;
    lane_.intent.pin.store(0, std::memory_order_release);  // sync: lane.pin
    lane_.intent.cin.store(0, std::memory_order_release);  // sync: lane.cin
    return true;
  }

 private:
  /// A cell that the dead lane marked as published: in the ring, taken, or never published.
  bool settle_published(std::uint32_t c, CellWord seen) noexcept {
    if (in_ring(c)) return true;
    switch (intent_on(c, std::nullopt)) {
      case Intended::kByLiving: return false;
      case Intended::kByDead: return true;  // Settled with the lane that intended to take it.
      case Intended::kByNobody: break;
    }
    // Between the look at the ring and the look at the intents it may have moved on.
    if (in_ring(c) || control_.word(c).load(std::memory_order_acquire) != seen) {  // sync: cell.word
      return false;
    }
    // A reaper that died while delivering again must not turn a lost publication into a lost item.
    if (control_.cell(c).attempt > 0) {
      publish_again(c);
    } else {
      pool_.free_cell(c);
    }
    return true;
  }

  /// A cell that the dead lane intended to take: taken and never used, or not taken.
  bool settle_intended(std::uint32_t c) noexcept {
    const CellWord seen = control_.word(c).load(std::memory_order_acquire);  // sync: cell.word
    if (lockfree::state_of(seen) != CellState::kInRing || in_ring(c)) return true;
    const std::uint16_t producer = lockfree::owner_of(seen);
    const Lane& from = control_.lane(producer);
    const bool unpublished =
        is_alive(producer) &&
        from.intent.pin.load(std::memory_order_acquire) == c + 1;  // sync: lane.pin
    if (unpublished) return true;
    if (intent_on(c, dead_) == Intended::kByLiving) return false;
    if (in_ring(c) || control_.word(c).load(std::memory_order_acquire) != seen) {  // sync: cell.word
      return false;
    }
    redeliver(c);
    return true;
  }

  void redeliver(std::uint32_t c) noexcept {
    ++control_.cell(c).attempt;
    publish_again(c);
  }

  void publish_again(std::uint32_t c) noexcept {
    const Cell& cell = control_.cell(c);
    Lane& mine = control_.lane(pool_.lane());
    // The ring has a slot for every cell, so this cannot find it full.
    control_.ring(cell.ring).push(c, pool_.lane(), mine.intent);
    mine.items_redelivered.fetch_add(1, std::memory_order_relaxed);
    control_.ring_header(cell.ring).filled.notify();
  }

  bool in_ring(std::uint32_t c) const noexcept {
    return control_.ring(control_.cell(c).ring).contains(c);
  }

  bool is_alive(std::uint16_t lane) const noexcept {
    return control_.lane(lane).state.load(std::memory_order_acquire) ==  // sync: lane.state
           LaneState::kAlive && lane != dead_;
  }

  Intended intent_on(std::uint32_t c, std::optional<std::uint16_t> besides) const noexcept {
    Intended found = Intended::kByNobody;
    for (std::uint32_t i = 0; i < control_.geometry().max_lanes; ++i) {
      if (besides && i == *besides) continue;
      const Lane& lane = control_.lane(i);
      if (lane.intent.cin.load(std::memory_order_acquire) != c + 1) continue;  // sync: lane.cin
      if (is_alive(static_cast<std::uint16_t>(i))) return Intended::kByLiving;
      found = Intended::kByDead;
    }
    return found;
  }

  Pool& pool_;
  const Control& control_;
  std::uint16_t dead_;
  Lane& lane_;
};

}  // namespace

bool reap(Pool& pool, std::uint16_t dead) noexcept { return Reaper(pool, dead).run(); }

}  // namespace flowtrain::channel
