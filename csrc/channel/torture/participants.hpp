#pragma once

#include <unistd.h>

#include "channel/torture/delays.hpp"
#include "channel/undertaker.hpp"
#include "os/folder.hpp"

namespace flowtrain::channel::torture {

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

  std::uint16_t join(LaneRole role) {
    for (;;) {
      try {
        return lanes_.take(role, 0, "torture", "torture");
      } catch (const PoolSpace&) {  // Until the dead are buried.
        ::usleep(1000);
      }
    }
  }

  [[noreturn]] void produce() {
    const std::uint16_t me = join(LaneRole::kProducer);
    lockfree::LaneIntent unseen;
    lockfree::LaneIntent& intent = Protocol::kPin ? control_.lane(me).intent : unseen;
    auto ring = control_.ring<Delays>(0);
    for (;;) {
      const std::uint32_t c = own(me);
      Cell& cell = control_.cell(c);
      cell.attempt = 0;
      cell.producer = me;
      const std::uint64_t item =
          arena_.ledger.counters().next.fetch_add(1, std::memory_order_relaxed);
      if (item >= Ledger::kMostItems) {
        for (;;) ::pause();
      }
      std::uint64_t* const slab = arena_.slabs + std::uint64_t{c} * arena_.slab_words;
      for (std::uint32_t i = 0; i < arena_.slab_words; ++i) slab[i] = item * 0x9E3779B97F4A7C15 + i;
      cell.descriptor.key_low = item;
      cell.ring = 0;
      if (!ring.push(c, me, intent)) ::_exit(1);  // There is a slot for every cell.
      arena_.ledger.published()[item].store(1, std::memory_order_relaxed);
      control_.ring_header(0).filled.notify();
    }
  }

  /// As Producer::try_own, lowest first.
  std::uint32_t own(std::uint16_t me) {
    for (;;) {
      std::uint32_t owned = UINT32_MAX;
      control_.header().space.wait(Deadline::in(kNapS), spin_, [&]() noexcept {
        for (std::uint32_t c = 0; c < control_.num_cells(); ++c) {
          lockfree::CellWord word = control_.word(c).load(std::memory_order_relaxed);
          if (lockfree::state_of(word) != lockfree::CellState::kFree) continue;
          const auto mine = lockfree::moved(word, lockfree::CellState::kOwned, me);
          if (control_.word(c).compare_exchange_strong(
                  word, mine, std::memory_order_acq_rel)) {  // sync: cell.word
            owned = c;
            return true;
          }
        }
        return false;
      });
      if (owned != UINT32_MAX) return owned;
    }
  }

  [[noreturn]] void consume() {
    const std::uint16_t me = join(LaneRole::kConsumer);
    lockfree::LaneIntent unseen;
    lockfree::LaneIntent& intent = Protocol::kCin ? control_.lane(me).intent : unseen;
    auto ring = control_.ring<Delays>(0);
    for (;;) {
      const std::uint32_t c = ring.pop(me, intent);
      if (c == ring.kNone) {
        control_.ring_header(0).filled.wait(Deadline::in(kNapS), spin_,
                                            [&]() noexcept { return !ring.looks_empty(); });
        continue;
      }
      const std::uint64_t item = control_.cell(c).descriptor.key_low;
      bool good = is_whole(c, item);
      dawdle(16);
      good = good && is_whole(c, item);
      const auto word = control_.word(c).load(std::memory_order_relaxed);
      good = good && word == lockfree::moved(word, lockfree::CellState::kHeld, me);
      if (!good) arena_.ledger.counters().corrupt.fetch_add(1, std::memory_order_relaxed);
      release(c, item);
    }
  }

  bool is_whole(std::uint32_t c, std::uint64_t item) const {
    const std::uint64_t* const slab = arena_.slabs + std::uint64_t{c} * arena_.slab_words;
    if (item >= Ledger::kMostItems) return false;
    for (std::uint32_t i = 0; i < arena_.slab_words; ++i) {
      if (slab[i] != item * 0x9E3779B97F4A7C15 + i) return false;
    }
    return true;
  }

  void release(std::uint32_t c, std::uint64_t item) {
    seat->releasing.store(item + 1, std::memory_order_relaxed);
    // Who is killed has done what came before in the program: only the compiler is to be told.
    std::atomic_signal_fence(std::memory_order_seq_cst);  // sync: seat.releasing
    if constexpr (Protocol::kGeneration) {
      control_.free_cell(c);
    } else {
      const auto word = control_.word(c).load(std::memory_order_relaxed);
      control_.word(c).store(lockfree::moved(word, lockfree::CellState::kFree, 0),
                             std::memory_order_release);  // sync: cell.word
      control_.header().space.notify();
    }
    if (item < Ledger::kMostItems) arena_.ledger.note_commit(item);
    std::atomic_signal_fence(std::memory_order_seq_cst);  // sync: seat.releasing
    seat->releasing.store(0, std::memory_order_relaxed);
  }

  [[noreturn]] void bury() {
    const std::uint16_t me = join(LaneRole::kPool);
    Undertaker<Protocol> undertaker(control_, lanes_, me);
    for (;;) {
      undertaker.bury_the_dead([](std::uint16_t) {});
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

}  // namespace flowtrain::channel::torture
