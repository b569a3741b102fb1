#pragma once

#include <algorithm>
#include <atomic>
#include <bit>
#include <cstdint>

#include "base/cpu.hpp"
#include "base/math.hpp"
#include "lockfree/cell_word.hpp"
#include "lockfree/slot.hpp"

namespace flowtrain::lockfree {

using AtomicCell = std::atomic<CellWord>;
using AtomicSlot = std::atomic<SlotWord>;

/// What a lane is moving right now, as runs. A reaper reads them after a death to tell a cell
/// that was never published from one that was taken and never used.
struct alignas(kCacheLine) LaneIntent {
  std::atomic<RunWord> pin{0};  ///< Cells that the lane is publishing.
  std::atomic<RunWord> cin{0};  ///< Cells that the lane is taking.
};

/// Tickets that all before were published (tail) or taken (head): where a newcomer begins to look.
/// Each is on a line of its own, and moved now and then by whoever comes by.
struct RingHints {
  alignas(kCacheLine) std::atomic<std::uint64_t> tail{0};
  alignas(kCacheLine) std::atomic<std::uint64_t> head{0};
};

static_assert(sizeof(LaneIntent) == kCacheLine && sizeof(RingHints) == 2 * kCacheLine);
static_assert(AtomicSlot::is_always_lock_free && AtomicCell::is_always_lock_free);

/// Points of the protocol right after which a participant may die or stop; kSettled is the end of
/// a push or a pop.
enum class RingPoint { kPinned, kMarkedInRing, kPublished, kIntended, kTaken, kSettled };

/// What happens at each point: nothing, in what is shipped; tests stop or kill there.
struct NoHooks {
  static void at(RingPoint) noexcept {}
};

/// Bounded ring of runs of cells, many producers and many consumers, as one participant sees it.
///
/// Memory:   placed by the caller; holds no pointers into shared memory beyond this process.
/// Threads:  one at a time; any number of participants in any processes, each with a lane of its
///           own.
/// Progress: lock-free; a participant that stops or dies anywhere never holds the others up.
/// Ordering: ring.slot publishes a cell and gives its slot back. Slot writes are all
///           read-modify-writes, so they form one release sequence: whoever acquires a slot and
///           no longer finds a cell in it also sees the taker's intent, or its later kHeld.
/// Errors:   never throws; full, empty and damaged are return values. Every process of the pool can
///           write the slots: a run of cells that there are not is not taken, and a ring whose
///           slots and hints fit no order is given up after a great many looks at which nobody
///           moved.
///
/// A participant walks the slots from where it was, or from the hint if that is further: a slot
/// whose phase is past the ticket's was filled, or taken, by somebody, who need not be waited for.
/// Slots are filled and taken in the order of tickets, so one that is not past says that the ring
/// is full, or empty.
template <class Hooks = NoHooks>
class IndexRing {
 public:
  static constexpr std::uint32_t kNone = UINT32_MAX;
  /// Tickets between two moves of a shared hint: most operations then write the slot alone.
  static constexpr std::uint64_t kTicketsPerHint = 16;
  /// What is taken out of a ring that was damaged.
  static constexpr Run kDamaged{UINT32_MAX, UINT32_MAX};

  IndexRing() = default;
  /// @param capacity   Slots; a power of two.
  /// @param num_cells  Cells that slots may name.
  IndexRing(RingHints* hints, AtomicSlot* slots, std::uint32_t capacity, AtomicCell* cells,
            std::uint32_t num_cells = kMostCells)
      : hints_(hints),
        slots_(slots),
        cells_(cells),
        num_cells_(num_cells),
        mask_(capacity - 1),
        log2_(static_cast<std::uint32_t>(std::countr_zero(capacity))) {}

  /// Publishes a cell that `lane` owns; false if the ring is full, and the lane owns it still.
  bool push(std::uint32_t cell, std::uint16_t lane, LaneIntent& intent) noexcept(kNoexcept) {
    return push_run({cell, 1}, lane, intent);
  }

  /// The same for 1 to kMostInRun cells, by one compare-and-swap for all.
  bool push_run(const Run& run, std::uint16_t lane, LaneIntent& intent) noexcept(kNoexcept) {
    intent.pin.store(run_word(run), std::memory_order_release);  // sync: lane.pin
    Hooks::at(RingPoint::kPinned);
    mark(run, CellState::kInRing, lane);
    Hooks::at(RingPoint::kMarkedInRing);
    tail_ = std::max(tail_, hints_->tail.load(std::memory_order_acquire));  // sync: ring.tail
    for (Chase chase; chase.goes_on(hints_->tail, tail_, mask_);) {
      AtomicSlot& slot = slots_[tail_ & mask_];
      SlotWord word = slot.load(std::memory_order_acquire);  // sync: ring.slot
      const std::int32_t past = phases_past(word, lap(tail_));
      if (past > 0) {
        ++tail_;
      } else if (past < 0) {
        break;
      } else if (slot.compare_exchange_strong(word, full_slot(lap(tail_), run),
                                              std::memory_order_acq_rel)) {  // sync: ring.slot
        Hooks::at(RingPoint::kPublished);
        if (++tail_ % kTicketsPerHint == 0) advance(hints_->tail, tail_);
        intent.pin.store(0, std::memory_order_release);  // sync: lane.pin
        Hooks::at(RingPoint::kSettled);
        return true;
      }
    }
    mark(run, CellState::kOwned, lane);
    intent.pin.store(0, std::memory_order_release);  // sync: lane.pin
    Hooks::at(RingPoint::kSettled);
    return false;
  }

  /// Takes the oldest cell for `lane`, which holds it from then on; kNone if the ring is empty.
  std::uint32_t pop(std::uint16_t lane, LaneIntent& intent) noexcept(kNoexcept) {
    const Run run = pop_run(1, lane, intent);
    return run.count == 0 ? kNone : run.first;
  }

  /// Takes the oldest run, or the first `most` cells of it, by one compare-and-swap; kDamaged
  /// where what is next is no run.
  Run pop_run(std::uint32_t most, std::uint16_t lane, LaneIntent& intent) noexcept(kNoexcept) {
    head_ = std::max(head_, hints_->head.load(std::memory_order_acquire));  // sync: ring.head
    bool intended = false;
    for (Chase chase; chase.goes_on(hints_->head, head_, mask_);) {
      AtomicSlot& slot = slots_[head_ & mask_];
      SlotWord word = slot.load(std::memory_order_acquire);  // sync: ring.slot
      const std::int32_t past = phases_past(word, lap(head_));
      if (past > 1) {
        ++head_;
        continue;
      }
      if (past < 1) {
        if (intended) intent.cin.store(0, std::memory_order_release);  // sync: lane.cin
        Hooks::at(RingPoint::kSettled);
        return {};
      }
      const Run there = run_in(word);
      if (there.count == 0 || there.first + there.count > num_cells_) break;
      const Run run{there.first, std::min(there.count, most)};
      const Run rest{there.first + run.count, there.count - run.count};
      prefetch(run);
      intent.cin.store(run_word(run), std::memory_order_release);  // sync: lane.cin
      intended = true;
      Hooks::at(RingPoint::kIntended);
      const SlotWord after =
          rest.count == 0 ? empty_slot(lap(head_) + 1) : full_slot(lap(head_), rest);
      if (!slot.compare_exchange_strong(word, after,
                                        std::memory_order_acq_rel)) {  // sync: ring.slot
        continue;
      }
      Hooks::at(RingPoint::kTaken);
      if (rest.count == 0 && ++head_ % kTicketsPerHint == 0) advance(hints_->head, head_);
      mark(run, CellState::kHeld, lane);
      intent.cin.store(0, std::memory_order_release);  // sync: lane.cin
      Hooks::at(RingPoint::kSettled);
      return run;
    }
    intent.cin.store(0, std::memory_order_release);  // sync: lane.cin
    Hooks::at(RingPoint::kSettled);
    return kDamaged;
  }

  /// Whether the next pop would find the ring empty; a hint, for waiting. False if it is damaged.
  bool looks_empty() noexcept {
    head_ = std::max(head_, hints_->head.load(std::memory_order_acquire));  // sync: ring.head
    for (Chase chase; chase.goes_on(hints_->head, head_, mask_); ++head_) {
      const SlotWord word =
          slots_[head_ & mask_].load(std::memory_order_acquire);  // sync: ring.slot
      const std::int32_t past = phases_past(word, lap(head_));
      if (past <= 1) return past < 1;
    }
    return false;
  }

  /// Calls `visit` with every run in the ring; for a reaper, which has time.
  template <class Visit>
  void for_each(Visit&& visit) const noexcept {
    for (std::uint64_t i = 0; i <= mask_; ++i) {
      const SlotWord word = slots_[i].load(std::memory_order_acquire);  // sync: ring.slot
      if (is_full(word)) visit(run_in(word));
    }
  }

  bool contains(std::uint32_t cell) const noexcept {
    bool found = false;
    for_each([&](const Run& run) { found |= run.holds(cell); });
    return found;
  }

 private:
  static constexpr bool kNoexcept = noexcept(Hooks::at(RingPoint::kPinned));

  /// Looks at slots that others move on meanwhile. They may be as quick as the walk is, so now and
  /// then it goes on from their hint. While the hint moves somebody makes progress, and none is
  /// made in a ring that was damaged; but who damages one may move its hint as well.
  class Chase {
   public:
    bool goes_on(const std::atomic<std::uint64_t>& hint, std::uint64_t& at,
                 std::uint64_t mask) noexcept {
      if (++looks_ % kTicketsPerHint != 0) return true;
      const std::uint64_t now = hint.load(std::memory_order_acquire);  // sync: ring.tail, ring.head
      at = std::max(at, now);
      if (now != seen_) since_ = looks_;
      seen_ = now;
      return looks_ - since_ < kMostIdle + 4 * mask && looks_ < kMost + 4 * mask;
    }

   private:
    static constexpr std::uint64_t kMostIdle = 1 << 16;  ///< Looks without progress.
    static constexpr std::uint64_t kMost = 1 << 22;      ///< About 50 ms.

    std::uint64_t looks_ = 0;
    std::uint64_t since_ = 0;
    std::uint64_t seen_ = 0;
  };

  /// Has the words of a run come to this core while the slot does.
  void prefetch(const Run& run) const noexcept {
    constexpr std::uint32_t kWordsOfLine = kCacheLine / sizeof(AtomicCell);
    for (std::uint32_t c = run.first; c < run.first + run.count; c += kWordsOfLine) {
      prefetch_to_write(&cells_[c]);
    }
    prefetch_to_write(&cells_[run.first + run.count - 1]);
  }

  /// Moves the cells of a run to another state. Their words are the lane's to write.
  void mark(const Run& run, CellState state, std::uint16_t lane) noexcept {
    for (std::uint32_t c = run.first; c < run.first + run.count; ++c) {
      const CellWord word = cells_[c].load(std::memory_order_relaxed);
      cells_[c].store(moved(word, state, lane), std::memory_order_release);  // sync: cell.word
    }
  }

  std::uint64_t lap(std::uint64_t ticket) const noexcept { return ticket >> log2_; }

  /// Moves a hint on to a ticket, unless it is there or further.
  static void advance(std::atomic<std::uint64_t>& hint, std::uint64_t to) noexcept {
    std::uint64_t from = hint.load(std::memory_order_relaxed);
    while (from < to && !hint.compare_exchange_weak(
                            from, to, std::memory_order_acq_rel)) {  // sync: ring.tail, ring.head
    }
  }

  RingHints* hints_ = nullptr;
  AtomicSlot* slots_ = nullptr;
  AtomicCell* cells_ = nullptr;
  std::uint32_t num_cells_ = 0;
  std::uint64_t mask_ = 0;
  std::uint32_t log2_ = 0;
  std::uint64_t tail_ = 0;
  std::uint64_t head_ = 0;
};

}  // namespace flowtrain::lockfree
