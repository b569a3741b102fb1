#include "lockfree/index_ring.hpp"

#include <memory>
#include <thread>
#include <vector>

#include "check.hpp"

using namespace flowtrain::lockfree;

namespace {

template <class Hooks = NoHooks>
struct Fixture {
  explicit Fixture(std::uint32_t capacity, std::uint32_t num_cells)
      : slots(capacity), cells(num_cells), ring(&hints, slots.data(), capacity, cells.data()) {}

  /// A producer's allocation: the one compare-and-swap that carries its owner.
  void own(std::uint32_t cell, std::uint16_t lane) {
    cells[cell].store(moved(cells[cell].load(), CellState::kOwned, lane));
  }

  RingHints hints;
  std::vector<AtomicSlot> slots;
  std::vector<AtomicCell> cells;
  IndexRing<Hooks> ring;
};

/// The lap field wraps at 31 bits; a slot of the lap before must not be taken for the next.
void slot_words_keep_lap_and_index_apart() {
  CHECK(empty_slot(kLapMask + 1) == empty_slot(0));
  CHECK(index_of(full_slot(kLapMask, UINT32_MAX)) == UINT32_MAX);
  CHECK(lap_of(full_slot(kLapMask, UINT32_MAX)) == kLapMask);
  CHECK(is_full(full_slot(0, 0)) && !is_full(empty_slot(kLapMask)));
}

void order_is_kept_and_full_is_told() {
  Fixture f(4, 8);
  LaneIntent intent;
  for (std::uint32_t round = 0; round < 10; ++round) {
    for (std::uint32_t c = 0; c < 4; ++c) {
      f.own(c, 1);
      CHECK(f.ring.push(c, 1, intent));
    }
    f.own(7, 1);
    CHECK(!f.ring.push(7, 1, intent));
    CHECK(state_of(f.cells[7].load()) == CellState::kOwned);
    for (std::uint32_t c = 0; c < 4; ++c) {
      CHECK(f.ring.pop(2, intent) == c);
      CHECK(state_of(f.cells[c].load()) == CellState::kHeld);
      CHECK(owner_of(f.cells[c].load()) == 2);
    }
    CHECK(f.ring.pop(2, intent) == IndexRing<>::kNone);
    CHECK(intent.pin.load() == 0 && intent.cin.load() == 0);
  }
}

/// A participant that stops right after its swap leaves hints behind; the others help.
void stale_hints_are_helped_forward() {
  Fixture f(4, 4);
  LaneIntent intent;
  f.own(0, 1);
  f.own(1, 1);
  f.slots[0].store(full_slot(0, 0));  // Published, and died before moving the tail.
  CHECK(f.ring.push(1, 1, intent));
  CHECK(f.ring.pop(2, intent) == 0);
  f.slots[1].store(empty_slot(1));  // Taken, and died before moving the head.
  f.own(2, 1);
  CHECK(f.ring.push(2, 1, intent));
  CHECK(f.ring.pop(2, intent) == 2);
}

/// Every cell is with exactly one thread at a time, and none is lost.
void threads_neither_lose_nor_double() {
  constexpr std::uint32_t kCells = 64;
  constexpr int kEach = 20000;
  Fixture f(64, kCells);
  std::vector<std::atomic<int>> held(kCells);
  std::atomic<std::uint32_t> next_free{0};
  std::atomic<long> taken{0};
  std::vector<std::jthread> threads;
  for (std::uint16_t p = 0; p < 2; ++p) {
    threads.emplace_back([&, p] {
      LaneIntent intent;
      for (int i = 0; i < kEach;) {
        const std::uint32_t c = next_free.fetch_add(1) % kCells;
        CellWord word = f.cells[c].load();
        if (state_of(word) != CellState::kFree ||
            !f.cells[c].compare_exchange_strong(word, moved(word, CellState::kOwned, p))) {
          std::this_thread::yield();
          continue;
        }
        CHECK(held[c].fetch_add(1) == 0);
        held[c].fetch_sub(1);
        while (!f.ring.push(c, p, intent)) std::this_thread::yield();
        ++i;
      }
    });
    threads.emplace_back([&, p] {
      LaneIntent intent;
      const auto lane = static_cast<std::uint16_t>(10 + p);
      while (taken.load() < 2 * kEach) {
        const std::uint32_t c = f.ring.pop(lane, intent);
        if (c == IndexRing<>::kNone) {
          std::this_thread::yield();
          continue;
        }
        CHECK(held[c].fetch_add(1) == 0);
        held[c].fetch_sub(1);
        taken.fetch_add(1);
        f.cells[c].store(freed(f.cells[c].load()), std::memory_order_release);
      }
    });
  }
  threads.clear();
  CHECK(taken.load() == 2 * kEach);
  for (std::uint32_t c = 0; c < kCells; ++c) CHECK(state_of(f.cells[c].load()) == CellState::kFree);
}

}  // namespace

int main() {
  slot_words_keep_lap_and_index_apart();
  order_is_kept_and_full_is_told();
  stale_hints_are_helped_forward();
  threads_neither_lose_nor_double();
}
