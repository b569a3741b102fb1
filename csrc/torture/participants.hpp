#pragma once

#include <unistd.h>

#include "channel/undertaker.hpp"
#include "os/folder.hpp"
#include "torture/delays.hpp"

namespace flowtrain::torture {

using channel::Cell;
using channel::Control;
using channel::LaneRole;
using channel::Lanes;
using channel::Undertaker;

enum class Role : std::uint8_t { kProducer, kConsumer, kReaper };

/// What participants share.
struct Arena {
  const Control& control;
  const os::Fd& file;
  const Ledger& ledger;
  std::uint64_t* slabs;  ///< One after another, in memory shared with every child.
  std::uint32_t slab_words;
};

/// One participant: a forked child that works until it is killed.
template <class Protocol>
class Participant {
 public:
  Participant(const Arena& arena, Role role)
      : arena_(arena),
        control_(arena.control),
        file_(os::reopen_file(arena.file)),  // Byte locks belong to a description of its own.
        lanes_(control_, file_),
        role_(role) {}

  [[noreturn]] void run() {
    switch (role_) {
      case Role::kProducer: produce();
      case Role::kConsumer: consume();
      case Role::kReaper: bury();
    }
    ::_exit(1);
  }

 private:
  static constexpr double kNapS = 0.005;
  static constexpr std::uint32_t kMostAtOnce = 4;
  static constexpr std::uint64_t kSpread = 0x9E3779B97F4A7C15;

  std::uint16_t join(LaneRole role) {
    for (;;) {
      try {
        return lanes_.join(role, 0, "torture", "torture");
      } catch (const PoolSpace&) {  // Until the dead are buried.
        ::usleep(1000);
      }
    }
  }

  [[noreturn]] void produce() {
    const std::uint16_t me = join(LaneRole::kProducer);
    lockfree::LaneIntent unseen;
    lockfree::LaneIntent& intent = Protocol::kPublishing ? control_.lane(me).intent : unseen;
    auto ring = control_.ring<Delays>(0);
    for (;;) {
      const lockfree::Run run = own(me);
      std::uint64_t items[kMostAtOnce];
      for (std::uint32_t i = 0; i < run.count; ++i) items[i] = fill(run.first + i, me);
      if (!ring.push_run(run, me, intent)) ::_exit(1);  // There is a slot for every cell.
      for (std::uint32_t i = 0; i < run.count; ++i) {
        arena_.ledger.published()[items[i]].store(1, std::memory_order_relaxed);
      }
      control_.ring_header(0).filled.notify();
    }
  }

  /// Writes a new item into a cell; its number.
  std::uint64_t fill(std::uint32_t c, std::uint16_t me) {
    Cell& cell = control_.cell(c);
    cell.attempt = 0;
    cell.producer = me;
    const std::uint64_t item =
        arena_.ledger.counters().next.fetch_add(1, std::memory_order_relaxed);
    if (item >= Ledger::kMostItems) {
      for (;;) ::pause();
    }
    std::uint64_t* const slab = arena_.slabs + std::uint64_t{c} * arena_.slab_words;
    for (std::uint32_t i = 0; i < arena_.slab_words; ++i) slab[i] = item * kSpread + i;
    cell.descriptor.key_low = item;
    cell.ring = 0;
    return item;
  }

  /// Some free cells in a row, each as by SlabAllocator::try_lease_cell.
  lockfree::Run own(std::uint16_t me) {
    const auto most = static_cast<std::uint32_t>(1 + draw() % kMostAtOnce);
    const auto take = [this, me](std::uint32_t c) { return try_own(c, me); };
    const lockfree::FreeMap map = control_.free_map();
    const std::uint32_t end = control_.num_cells();
    for (;;) {
      std::uint32_t first = lockfree::FreeMap::kNone;
      control_.header().space.wait(Deadline::in(kNapS), spin_, [&]() noexcept {
        first = map.find(0, end, 0, take);
        if (first == lockfree::FreeMap::kNone) first = map.scan(0, end, take);
        return first != lockfree::FreeMap::kNone;
      });
      if (first == lockfree::FreeMap::kNone) continue;
      lockfree::Run run{first, 1};
      while (run.count < most && first + run.count < end && take(first + run.count)) ++run.count;
      return run;
    }
  }

  bool try_own(std::uint32_t c, std::uint16_t me) noexcept {
    lockfree::CellWord word = control_.word(c).load(std::memory_order_relaxed);
    return lockfree::state_of(word) == lockfree::CellState::kFree &&
           control_.word(c).compare_exchange_strong(
               word, lockfree::moved(word, lockfree::CellState::kLeased, me),
               std::memory_order_acq_rel);  // sync: cell.word
  }

  [[noreturn]] void consume() {
    const std::uint16_t me = join(LaneRole::kConsumer);
    lockfree::LaneIntent unseen;
    lockfree::LaneIntent& intent = Protocol::kTaking ? control_.lane(me).intent : unseen;
    auto ring = control_.ring<Delays>(0);
    for (;;) {
      const auto most = static_cast<std::uint32_t>(1 + draw() % kMostAtOnce);
      const lockfree::Run run = ring.pop_run(most, me, intent);
      if (run.count == 0) {
        control_.ring_header(0).filled.wait(Deadline::in(kNapS), spin_,
                                            [&]() noexcept { return !ring.looks_empty(); });
      }
      for (std::uint32_t i = 0; i < run.count; ++i) use(run.first + i, me);
    }
  }

  void use(std::uint32_t c, std::uint16_t me) {
    const std::uint64_t item = control_.cell(c).descriptor.key_low;
    bool good = is_whole(c, item);
    dawdle(16);
    good = good && is_whole(c, item);
    const auto word = control_.word(c).load(std::memory_order_relaxed);
    good = good && word == lockfree::moved(word, lockfree::CellState::kTaken, me);
    if (!good) arena_.ledger.counters().corrupt.fetch_add(1, std::memory_order_relaxed);
    release(c, item);
  }

  bool is_whole(std::uint32_t c, std::uint64_t item) const {
    const std::uint64_t* const slab = arena_.slabs + std::uint64_t{c} * arena_.slab_words;
    if (item >= Ledger::kMostItems) return false;
    for (std::uint32_t i = 0; i < arena_.slab_words; ++i) {
      if (slab[i] != item * kSpread + i) return false;
    }
    return true;
  }

  /// As Control::release_cell, with the ledger's entry right behind the store, so that hardly
  /// anybody dies between the two.
  void release(std::uint32_t c, std::uint64_t item) {
    const auto word = control_.word(c).load(std::memory_order_relaxed);
    // Without a generation the words of one life are those of the next.
    const auto free = Protocol::kGeneration ? lockfree::freed(word)
                                            : lockfree::cell_word(lockfree::CellState::kFree, 0, 0);
    seat->releasing.store(item + 1, std::memory_order_relaxed);
    // Who is killed has done what came before in the program: only the compiler is to be told.
    std::atomic_signal_fence(std::memory_order_seq_cst);      // sync: seat.releasing
    control_.word(c).store(free, std::memory_order_release);  // sync: cell.word
    if (item < Ledger::kMostItems) arena_.ledger.note_commit(item);
    std::atomic_signal_fence(std::memory_order_seq_cst);  // sync: seat.releasing
    seat->releasing.store(0, std::memory_order_relaxed);
    std::atomic_thread_fence(std::memory_order_seq_cst);
    control_.free_map().note_free(c);
    control_.header().space.notify_after_fence();
  }

  [[noreturn]] void bury() {
    const std::uint16_t me = join(LaneRole::kPool);
    Recovery<Protocol> recovery(control_, lanes_, me);
    for (;;) {
      recovery.reclaim_dead([](std::uint16_t) {});
      seat->window.store(0, std::memory_order_relaxed);
      ::usleep(300);
    }
  }

  const Arena& arena_;
  const Control& control_;
  os::Fd file_;
  Lanes lanes_;
  Role role_;
  os::Spin spin_;
};

}  // namespace flowtrain::torture
