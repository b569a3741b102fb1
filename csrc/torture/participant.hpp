#pragma once

#include <unistd.h>

#include "channel/cells/slab_allocator.hpp"
#include "channel/liveness/recovery.hpp"
#include "os/folder.hpp"
#include "torture/delays.hpp"

namespace flowtrain::torture {

using channel::Cell;
using channel::Control;
using channel::LaneRole;
using channel::Lanes;
using channel::Recovery;
using channel::SlabAllocator;

enum class Role : std::uint8_t { kProducer, kConsumer, kReaper };

/// State that all participants share.
struct SharedState {
  const Control& control;
  const os::Fd& file;
  const Ledger& ledger;
  std::uint32_t class_cells;  ///< Cells of the first segment, which has one class.
  std::byte* memory[2];       ///< Of the two segments, shared with every child.
};

/// Bytes of an item in the first segment, and of a lease in the second.
inline constexpr std::uint64_t kClassBytes = 512;
inline constexpr std::uint64_t kLeaseBytes = 4 * kPageBytes;

/// One participant: a forked child that works until it is killed.
template <class Protocol>
class Participant {
 public:
  Participant(const SharedState& shared, Role role)
      : shared_(shared),
        control_(shared.control),
        file_(os::reopen_file(shared.file)),  // Its own description: byte locks belong to one.
        lanes_(control_, file_),
        role_(role) {}

  [[noreturn]] void run() {
    switch (role_) {
      case Role::kProducer: produce();
      case Role::kConsumer: consume();
      case Role::kReaper: reap();
    }
    ::_exit(1);
  }

 private:
  static constexpr double kWaitS = 0.005;
  static constexpr std::uint32_t kMaxRun = 4;
  static constexpr std::uint64_t kPatternStep = 0x9E3779B97F4A7C15;

  std::uint16_t join(LaneRole role) {
    for (;;) {
      try {
        return lanes_.join(role, 0, "torture", "torture");
      } catch (const PoolSpace&) {  // Until a reaper frees the lane of a dead participant.
        ::usleep(1000);
      }
    }
  }

  [[noreturn]] void produce() {
    const std::uint16_t me = join(LaneRole::kProducer);
    lockfree::LaneIntent private_intent;  // No reaper sees it.
    lockfree::LaneIntent& intent =
        Protocol::kPublishing ? control_.lane(me).intent : private_intent;
    auto ring = control_.ring<RingDelays>(0);
    SlabAllocator slabs(control_, lanes_, me, me);
    for (;;) {
      std::uint64_t items[kMaxRun];
      lockfree::Run run = draw() % 4 == 0 ? lease_on_demand(slabs) : lockfree::Run{};
      if (run.count != 0) {
        items[0] = fill_and_shrink(run.first, me, slabs);
      } else {
        run = lease_free_cells(me);
        for (std::uint32_t i = 0; i < run.count; ++i)
          items[i] = fill(run.first + i, me, kClassBytes, kClassBytes);
      }
      if (!ring.push_run(run, me, intent)) ::_exit(1);  // There is a slot for every cell.
      for (std::uint32_t i = 0; i < run.count; ++i) {
        shared_.ledger.published()[items[i]].store(1, std::memory_order_relaxed);
      }
      control_.ring_header(0).filled.notify();
    }
  }

  /// Leases a slab of the second segment, if one is free.
  lockfree::Run lease_on_demand(SlabAllocator& slabs) {
    if (control_.num_segments() < 2) return {};
    const std::uint32_t cell = slabs.try_lease_in(1, kLeaseBytes);
    return {cell, cell == SlabAllocator::kNone ? 0U : 1U};
  }

  /// Writes all that was leased, and keeps a part.
  std::uint64_t fill_and_shrink(std::uint32_t c, std::uint16_t me, SlabAllocator& slabs) {
    const std::uint64_t bytes = 8 * (1 + draw() % (kLeaseBytes / 8));
    const std::uint64_t item = fill(c, me, bytes, kLeaseBytes);
    random_delay(16);
    slabs.shrink(c, bytes);
    shared_.ledger.counters().shrunk.fetch_add(1, std::memory_order_relaxed);
    random_delay(16);
    return item;
  }

  /// Writes a new item of `bytes` into a cell, and the same pattern behind it as far as leased.
  /// Returns the item's number.
  std::uint64_t fill(std::uint32_t c, std::uint16_t me, std::uint64_t bytes, std::uint64_t leased) {
    Cell& cell = control_.cell(c);
    cell.attempt = 0;
    cell.producer = me;
    const std::uint64_t item =
        shared_.ledger.counters().next.fetch_add(1, std::memory_order_relaxed);
    if (item >= Ledger::kMaxItems) {
      for (;;) ::pause();
    }
    std::uint64_t* const slab = slab_of(c);
    for (std::uint64_t i = 0; i < leased / 8; ++i) slab[i] = pattern(item, bytes, i);
    cell.descriptor.key_low = item;
    cell.descriptor.bytes = bytes;
    cell.ring = 0;
    return item;
  }

  /// Leases 1 to kMaxRun adjacent free cells of the first segment.
  lockfree::Run lease_free_cells(std::uint16_t me) {
    const auto max_run = static_cast<std::uint32_t>(1 + draw() % kMaxRun);
    const auto try_lease = [this, me](std::uint32_t c) {
      return lockfree::try_lease(control_.word(c), me);
    };
    const lockfree::FreeMap map = control_.free_map();
    const std::uint32_t end = shared_.class_cells;
    for (;;) {
      std::uint32_t first = lockfree::FreeMap::kNone;
      control_.header().space.wait(Deadline::in(kWaitS), spin_, [&]() noexcept {
        first = map.find(0, end, 0, try_lease);
        if (first == lockfree::FreeMap::kNone) first = map.scan(0, end, try_lease);
        return first != lockfree::FreeMap::kNone;
      });
      if (first == lockfree::FreeMap::kNone) continue;
      lockfree::Run run{first, 1};
      while (run.count < max_run && first + run.count < end && try_lease(first + run.count))
        ++run.count;
      return run;
    }
  }

  [[noreturn]] void consume() {
    const std::uint16_t me = join(LaneRole::kConsumer);
    lockfree::LaneIntent private_intent;  // No reaper sees it.
    lockfree::LaneIntent& intent = Protocol::kTaking ? control_.lane(me).intent : private_intent;
    auto ring = control_.ring<RingDelays>(0);
    for (;;) {
      const auto max_run = static_cast<std::uint32_t>(1 + draw() % kMaxRun);
      const lockfree::Run run = ring.pop_run(max_run, me, intent);
      if (run.count == 0) {
        control_.ring_header(0).filled.wait(Deadline::in(kWaitS), spin_,
                                            [&]() noexcept { return !ring.looks_empty(); });
      }
      for (std::uint32_t i = 0; i < run.count; ++i) use(run.first + i, me);
    }
  }

  void use(std::uint32_t c, std::uint16_t me) {
    const std::uint64_t item = control_.cell(c).descriptor.key_low;
    bool good = has_pattern(c, item);
    random_delay(16);
    good = good && has_pattern(c, item);
    const auto word = control_.word(c).load(std::memory_order_relaxed);
    good = good && word == lockfree::moved(word, lockfree::CellState::kTaken, me);
    if (!good) shared_.ledger.counters().corrupt.fetch_add(1, std::memory_order_relaxed);
    release(c, item);
  }

  bool has_pattern(std::uint32_t c, std::uint64_t item) const {
    const std::uint64_t bytes = control_.cell(c).descriptor.bytes;
    if (item >= Ledger::kMaxItems || bytes > kLeaseBytes) return false;
    const std::uint64_t* const slab = slab_of(c);
    for (std::uint64_t i = 0; i < bytes / 8; ++i) {
      if (slab[i] != pattern(item, bytes, i)) return false;
    }
    return true;
  }

  /// Word of an item. It differs for every length, so that a wrong one is seen.
  static std::uint64_t pattern(std::uint64_t item, std::uint64_t bytes, std::uint64_t i) noexcept {
    return (item << 16 | bytes) * kPatternStep + i;
  }

  std::uint64_t* slab_of(std::uint32_t c) const {
    const memory::Address slab = control_.cell(c).slab;
    std::byte* const segment = shared_.memory[memory::segment_of(slab) - 1];
    return reinterpret_cast<std::uint64_t*>(segment + memory::offset_of(slab));
  }

  /// As channel::release_cell, with the ledger's entry directly after the store, so that a kill
  /// between the two is unlikely.
  void release(std::uint32_t c, std::uint64_t item) {
    const auto word = control_.word(c).load(std::memory_order_relaxed);
    // Without a generation, the words of a cell repeat from one use to the next.
    const auto free = Protocol::kGeneration ? lockfree::freed(word)
                                            : lockfree::cell_word(lockfree::CellState::kFree, 0, 0);
    own_slot->releasing.store(item + 1, std::memory_order_relaxed);
    // A killed process has executed its instructions in program order: a compiler fence suffices.
    std::atomic_signal_fence(std::memory_order_seq_cst);      // sync: slot.releasing
    control_.word(c).store(free, std::memory_order_release);  // sync: cell.word
    if (item < Ledger::kMaxItems) shared_.ledger.note_commit(item);
    std::atomic_signal_fence(std::memory_order_seq_cst);  // sync: slot.releasing
    own_slot->releasing.store(0, std::memory_order_relaxed);
    std::atomic_thread_fence(std::memory_order_seq_cst);
    control_.free_map().note_free(c);
    control_.header().space.notify_after_fence();
  }

  [[noreturn]] void reap() {
    const std::uint16_t me = join(LaneRole::kPool);
    Recovery<Protocol> recovery(control_, lanes_, me);
    for (;;) {
      recovery.reclaim_dead([](std::uint16_t) {});
      own_slot->window.store(0, std::memory_order_relaxed);
      ::usleep(300);
    }
  }

  const SharedState& shared_;
  const Control& control_;
  os::Fd file_;
  Lanes lanes_;
  Role role_;
  os::Spin spin_;
};

}  // namespace flowtrain::torture
