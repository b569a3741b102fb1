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

using AtomicSlot = std::atomic<SlotWord>;

/// The runs of cells that a lane is moving. A reaper reads them, of dead and living lanes, to tell
/// a cell that never entered its ring from one that was taken but is not yet marked kTaken.
struct alignas(kCacheLine) LaneIntent {
  std::atomic<RunWord> publishing{0};
  std::atomic<RunWord> taking{0};
};

/// Tickets before which every slot was filled (tail) or emptied (head); a participant that is
/// behind continues there. Any participant advances them, but not at every ticket. Each has a cache
/// line of its own.
struct RingHints {
  alignas(kCacheLine) std::atomic<std::uint64_t> tail{0};
  alignas(kCacheLine) std::atomic<std::uint64_t> head{0};
};

static_assert(sizeof(LaneIntent) == kCacheLine && sizeof(RingHints) == 2 * kCacheLine);
static_assert(AtomicSlot::is_always_lock_free && AtomicCell::is_always_lock_free);

/// Points of the protocol right after which a participant may die or stop. kPublishing and kTaking:
/// the lane's intent is set. kMarked: the cells are marked as published. kPublished, kTaken: the
/// slot is exchanged. kDone: the end of a push or a pop.
enum class RingPoint { kPublishing, kMarked, kPublished, kTaking, kTaken, kDone };

/// Called at each point. The shipped one does nothing; tests stop or kill participants there.
struct NoHooks {
  static void at(RingPoint) noexcept {}
};

/// Bounded ring of runs of cells, many producers and many consumers, as one participant sees it.
///
/// Memory:   hints, slots and cell words in shared memory, placed by the caller. The object itself
///           belongs to one process.
/// Threads:  one at a time; any number of participants in any processes, each with a lane of its
///           own.
/// Progress: lock-free; a participant that stops or dies at any point never blocks the others.
/// Ordering: ring.slot publishes a cell and returns its slot. All writes of slots are
///           read-modify-writes, so they form one release sequence: a thread that acquires a slot
///           and no longer finds a cell in it also sees the taker's intent, or its later kTaken.
/// Errors:   never throws; full, empty and damaged are return values. Every process of the pool can
///           write the slots: a run of cells that do not exist is not taken, and a walk over slots
///           and hints that contradict each other ends after a bounded number of steps.
///
/// A participant walks the slots from its own position, or from the hint if that is further. It
/// skips a slot whose phase is past its ticket: another participant has filled or emptied it. Slots
/// are filled and emptied in the order of tickets, so a slot that is not past means that the ring
/// is full, or empty.
template <class Hooks = NoHooks>
class IndexRing {
 public:
  static constexpr std::uint32_t kNone = UINT32_MAX;
  /// Tickets from one advance of a shared hint to the next: most operations write only the slot.
  static constexpr std::uint64_t kTicketsPerHint = 16;
  /// Result of a pop from a damaged ring.
  static constexpr Run kDamaged{UINT32_MAX, UINT32_MAX};

  IndexRing() = default;
  /// @param capacity   Slots; a power of two.
  /// @param num_cells  Cells that slots may name.
  IndexRing(RingHints* hints, AtomicSlot* slots, std::uint32_t capacity, AtomicCell* cells,
            std::uint32_t num_cells = kMaxCells)
      : hints_(hints),
        slots_(slots),
        cells_(cells),
        num_cells_(num_cells),
        mask_(capacity - 1),
        log2_(static_cast<std::uint32_t>(std::countr_zero(capacity))) {}

  /// Publishes a cell that `lane` holds. Returns false if the ring is full: the lane then holds the
  /// cell as leased.
  bool push(std::uint32_t cell, std::uint16_t lane, LaneIntent& intent) noexcept(kNoexcept) {
    return push_run({cell, 1}, lane, intent);
  }

  /// Publishes 1 to kMaxRunCells cells by one compare-and-swap.
  bool push_run(const Run& run, std::uint16_t lane, LaneIntent& intent) noexcept(kNoexcept) {
    intent.publishing.store(run_word(run), std::memory_order_release);  // sync: lane.publishing
    Hooks::at(RingPoint::kPublishing);
    move<publish>(run, lane);
    Hooks::at(RingPoint::kMarked);
    tail_ = std::max(tail_, hints_->tail.load(std::memory_order_acquire));  // sync: ring.tail
    for (Walk walk; walk.may_step(hints_->tail, tail_, mask_);) {
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
        intent.publishing.store(0, std::memory_order_release);  // sync: lane.publishing
        Hooks::at(RingPoint::kDone);
        return true;
      }
    }
    move<unpublish>(run, lane);
    intent.publishing.store(0, std::memory_order_release);  // sync: lane.publishing
    Hooks::at(RingPoint::kDone);
    return false;
  }

  /// Takes the oldest cell for `lane`; kNone if the ring is empty.
  std::uint32_t pop(std::uint16_t lane, LaneIntent& intent) noexcept(kNoexcept) {
    const Run run = pop_run(1, lane, intent);
    return run.count == 0 ? kNone : run.first;
  }

  /// Takes the oldest run, or its first `max_cells` cells, by one compare-and-swap. Returns an
  /// empty run if the ring is empty, and kDamaged if the next slot holds no valid run.
  Run pop_run(std::uint32_t max_cells, std::uint16_t lane, LaneIntent& intent) noexcept(kNoexcept) {
    head_ = std::max(head_, hints_->head.load(std::memory_order_acquire));  // sync: ring.head
    bool intended = false;
    for (Walk walk; walk.may_step(hints_->head, head_, mask_);) {
      AtomicSlot& slot = slots_[head_ & mask_];
      SlotWord word = slot.load(std::memory_order_acquire);  // sync: ring.slot
      const std::int32_t past = phases_past(word, lap(head_));
      if (past > 1) {
        ++head_;
        continue;
      }
      if (past < 1) {
        if (intended) intent.taking.store(0, std::memory_order_release);  // sync: lane.taking
        Hooks::at(RingPoint::kDone);
        return {};
      }
      const Run found = run_in(word);
      if (found.count == 0 || found.first + found.count > num_cells_) break;
      const Run run{found.first, std::min(found.count, max_cells)};
      const Run rest{found.first + run.count, found.count - run.count};
      prefetch(run);
      intent.taking.store(run_word(run), std::memory_order_release);  // sync: lane.taking
      intended = true;
      Hooks::at(RingPoint::kTaking);
      const SlotWord after =
          rest.count == 0 ? empty_slot(lap(head_) + 1) : full_slot(lap(head_), rest);
      if (!slot.compare_exchange_strong(word, after,
                                        std::memory_order_acq_rel)) {  // sync: ring.slot
        continue;
      }
      Hooks::at(RingPoint::kTaken);
      if (rest.count == 0 && ++head_ % kTicketsPerHint == 0) advance(hints_->head, head_);
      move<take>(run, lane);
      intent.taking.store(0, std::memory_order_release);  // sync: lane.taking
      Hooks::at(RingPoint::kDone);
      return run;
    }
    intent.taking.store(0, std::memory_order_release);  // sync: lane.taking
    Hooks::at(RingPoint::kDone);
    return kDamaged;
  }

  /// Whether the next pop would find the ring empty; a hint for waiting. False if it is damaged.
  bool looks_empty() noexcept {
    head_ = std::max(head_, hints_->head.load(std::memory_order_acquire));  // sync: ring.head
    for (Walk walk; walk.may_step(hints_->head, head_, mask_); ++head_) {
      const SlotWord word =
          slots_[head_ & mask_].load(std::memory_order_acquire);  // sync: ring.slot
      const std::int32_t past = phases_past(word, lap(head_));
      if (past <= 1) return past < 1;
    }
    return false;
  }

  /// Calls `visit` with every run in the ring. Reads all slots: for reapers.
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
  static constexpr bool kNoexcept = noexcept(Hooks::at(RingPoint::kPublishing));

  /// Bounds a walk over slots that other participants change meanwhile. They may be as fast as the
  /// walk, so it catches up with their hint now and then. While the hint moves, some participant
  /// makes progress; in a damaged ring none does, unless the process that damages it moves the hint
  /// too, so the steps of one walk are limited as well.
  class Walk {
   public:
    bool may_step(const std::atomic<std::uint64_t>& hint, std::uint64_t& at,
                  std::uint64_t mask) noexcept {
      if (++steps_ % kTicketsPerHint != 0) return true;
      const std::uint64_t now = hint.load(std::memory_order_acquire);  // sync: ring.tail, ring.head
      at = std::max(at, now);
      if (now != seen_) since_ = steps_;
      seen_ = now;
      return steps_ - since_ < kMaxIdleSteps + 4 * mask && steps_ < kMaxSteps + 4 * mask;
    }

   private:
    static constexpr std::uint64_t kMaxIdleSteps = 1 << 16;  ///< While the hint does not move.
    static constexpr std::uint64_t kMaxSteps = 1 << 22;      ///< About 50 ms.

    std::uint64_t steps_ = 0;
    std::uint64_t since_ = 0;
    std::uint64_t seen_ = 0;
  };

  /// Prefetches the words of a run, to overlap with the exchange of the slot.
  void prefetch(const Run& run) const noexcept {
    constexpr std::uint32_t kWordsPerLine = kCacheLine / sizeof(AtomicCell);
    for (std::uint32_t c = run.first; c < run.first + run.count; c += kWordsPerLine) {
      prefetch_to_write(&cells_[c]);
    }
    prefetch_to_write(&cells_[run.first + run.count - 1]);
  }

  /// Moves each cell of a run by a transition of cell_word.hpp.
  template <void (*kTransition)(AtomicCell&, std::uint16_t) noexcept>
  void move(const Run& run, std::uint16_t lane) noexcept {
    for (std::uint32_t c = run.first; c < run.first + run.count; ++c) kTransition(cells_[c], lane);
  }

  std::uint64_t lap(std::uint64_t ticket) const noexcept { return ticket >> log2_; }

  /// Advances a hint to a ticket, unless it is there already or further.
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
