#include <deque>
#include <functional>
#include <random>
#include <thread>
#include <vector>

#include "check.hpp"
#include "lockfree/index_ring.hpp"

using namespace flowtrain::lockfree;

namespace {

/// A ring with cells and lanes in plain memory.
struct Fixture {
  Fixture(std::uint32_t capacity, std::uint32_t num_cells, std::uint32_t num_lanes,
          std::uint64_t first_ticket = 0)
      : slots(capacity), words(num_cells), lanes(num_lanes) {
    hints.head = hints.tail = first_ticket;
    for (std::uint64_t i = 0; i < capacity; ++i) {
      // The slot of ticket t is empty for the lap of the next ticket that maps to it.
      const std::uint64_t ticket = first_ticket + (i - first_ticket) % capacity;
      slots[i] = empty_slot(ticket / capacity);
    }
  }
  template <class Hooks = NoHooks>
  IndexRing<Hooks> ring() {
    return {&hints, slots.data(), static_cast<std::uint32_t>(slots.size()), words.data()};
  }
  void own(std::uint32_t cell, std::uint16_t lane) {
    words[cell] = cell_word(CellState::kLeased, lane, 0);
  }

  RingHints hints;
  std::vector<AtomicSlot> slots;
  std::vector<AtomicCell> words;
  std::vector<LaneIntent> lanes;
};

constexpr std::uint32_t kNone = IndexRing<>::kNone;

void random_use_is_first_in_first_out(std::uint64_t first_ticket) {
  Fixture f(8, 9, 2, first_ticket);
  auto usual = f.ring();
  std::mt19937 random(1);
  std::deque<std::uint32_t> model;
  std::deque<std::uint32_t> free{0, 1, 2, 3, 4, 5, 6, 7, 8};
  for (int step = 0; step < 20000; ++step) {
    auto newcomer = f.ring();  // Has only the hints.
    auto& ring = random() % 4 == 0 ? newcomer : usual;
    if (random() % 2 != 0) {
      const std::uint32_t cell = free.front();
      f.own(cell, 0);
      const bool pushed = ring.push(cell, 0, f.lanes[0]);
      CHECK(pushed == (model.size() < 8));
      CHECK(f.lanes[0].publishing == 0);
      const CellState now = state_of(f.words[cell]);
      CHECK(now == (pushed ? CellState::kPublished : CellState::kLeased));
      if (!pushed) continue;
      CHECK(ring.contains(cell) && !ring.looks_empty());
      model.push_back(cell);
      free.pop_front();
      if (free.empty()) free.push_back(cell + 100);  // Never: nine cells, eight slots.
    } else {
      const std::uint32_t cell = ring.pop(1, f.lanes[1]);
      CHECK(f.lanes[1].taking == 0);
      if (model.empty()) {
        CHECK(cell == kNone && ring.looks_empty());
        continue;
      }
      CHECK(cell == model.front() && !ring.contains(cell));
      CHECK(f.words[cell] == cell_word(CellState::kTaken, 1, 0, 1));
      model.pop_front();
      free.push_back(cell);
    }
  }
}

/// Otherwise every new participant would walk from the first ticket.
void hints_advance() {
  Fixture f(8, 1, 2);
  auto ring = f.ring();
  const std::uint64_t tickets = 5 * IndexRing<>::kTicketsPerHint + 3;
  for (std::uint64_t ticket = 0; ticket < tickets; ++ticket) {
    f.own(0, 0);
    CHECK(ring.push(0, 0, f.lanes[0]) && ring.pop(1, f.lanes[1]) == 0);
    for (const auto* hint : {&f.hints.tail, &f.hints.head}) {
      CHECK(*hint <= ticket + 1 && ticket + 1 - *hint < IndexRing<>::kTicketsPerHint);
    }
  }
}

/// Published runs are taken in runs of any size, in order, each cell once.
void runs_are_split_by_their_takers() {
  Fixture f(4, 64, 2);
  auto ring = f.ring();
  std::mt19937 random(2);
  std::deque<std::uint32_t> model;
  std::uint32_t next = 0;
  for (int step = 0; step < 20000; ++step) {
    const std::uint32_t wanted = 1 + random() % 6;
    if (random() % 2 != 0) {
      const Run run{next, std::min(wanted, 64 - next)};
      if (model.size() + run.count > 64) continue;  // Its cells are still in the ring.
      for (std::uint32_t c = run.first; c < run.first + run.count; ++c) f.own(c, 0);
      if (!ring.push_run(run, 0, f.lanes[0])) {
        CHECK(f.words[run.first] == cell_word(CellState::kLeased, 0, 0, 1));
        continue;
      }
      for (std::uint32_t c = run.first; c < run.first + run.count; ++c) {
        CHECK(ring.contains(c));
        model.push_back(c);
      }
      next = (next + run.count) % 64;
    } else {
      const Run run = ring.pop_run(wanted, 1, f.lanes[1]);
      CHECK(f.lanes[1].taking == 0 && run.count <= wanted && (run.count > 0) == !model.empty());
      for (std::uint32_t c = run.first; c < run.first + run.count; ++c) {
        CHECK(c == model.front() && !ring.contains(c));
        CHECK(f.words[c] == cell_word(CellState::kTaken, 1, 0, 1));
        model.pop_front();
      }
    }
  }
}

/// Three producers circulate their own cells through three consumers, in runs. Each cell counts its
/// trips, which shows a cell that is lost, duplicated or out of order.
void no_cell_is_lost_or_duplicated_between_threads() {
  constexpr std::uint32_t kProducers = 3, kConsumers = 3, kOwn = 5;
  constexpr std::uint64_t kTrips = 20000;
  Fixture f(16, kProducers * kOwn, kProducers + kConsumers);
  std::vector<std::uint64_t> payload(kProducers * kOwn);
  std::atomic<std::uint64_t> taken{0}, sum{0};
  std::vector<std::jthread> threads;
  for (std::uint16_t p = 0; p < kProducers; ++p) {
    threads.emplace_back([&f, &payload, p] {
      auto ring = f.ring();
      for (std::uint64_t trip = 0; trip < kTrips;) {
        const auto at = static_cast<std::uint32_t>(trip % kOwn);
        const auto most = static_cast<std::uint32_t>(std::min<std::uint64_t>(3, kTrips - trip));
        const Run run{p * kOwn + at, std::min(most, kOwn - at)};
        for (std::uint32_t c = run.first; c < run.first + run.count; ++c) {
          while (state_of(f.words[c].load(std::memory_order_acquire)) != CellState::kFree) {
            std::this_thread::yield();
          }
          f.own(c, p);
          payload[c] = trip++;
        }
        while (!ring.push_run(run, p, f.lanes[p])) std::this_thread::yield();
      }
    });
  }
  for (std::uint16_t c = 0; c < kConsumers; ++c) {
    threads.emplace_back([&, lane = static_cast<std::uint16_t>(kProducers + c)] {
      auto ring = f.ring();
      std::vector<std::uint64_t> newest(kProducers, 0);
      while (taken.load() < kProducers * kTrips) {
        const Run run = ring.pop_run(2, lane, f.lanes[lane]);
        if (run.count == 0) std::this_thread::yield();
        for (std::uint32_t c = run.first; c < run.first + run.count; ++c) {
          const std::uint64_t trip = payload[c];
          CHECK(trip % kOwn == c % kOwn && trip >= newest[c / kOwn]);
          newest[c / kOwn] = trip;
          sum += trip;
          ++taken;
          f.words[c].store(freed(f.words[c].load()), std::memory_order_release);
        }
      }
    });
  }
  threads.clear();
  CHECK(taken == kProducers * kTrips && f.ring().looks_empty());
  CHECK(sum == kProducers * (kTrips * (kTrips - 1) / 2));
}

/// Stops a lane for ever right after one of its steps.
struct StopAt {
  static inline RingPoint point;
  struct Stopped {};
  static void at(RingPoint now) {
    if (now == point) throw Stopped{};
  }
};

void a_stopped_participant_blocks_no_other(RingPoint point) {
  Fixture f(2, 4, 4);
  auto ring = f.ring();
  f.own(0, 0);
  if (point == RingPoint::kTaking || point == RingPoint::kTaken) ring.push(0, 0, f.lanes[0]);
  StopAt::point = point;
  auto stopping = f.ring<StopAt>();
  bool stopped = false;
  try {
    if (point == RingPoint::kTaking || point == RingPoint::kTaken) {
      stopping.pop(1, f.lanes[1]);
    } else {
      stopping.push(0, 0, f.lanes[0]);
    }
  } catch (const StopAt::Stopped&) {
    stopped = true;
  }
  CHECK(stopped);
  // The others continue, for more than a lap.
  const bool first_is_there = point == RingPoint::kPublished || point == RingPoint::kTaking;
  if (first_is_there) CHECK(ring.pop(3, f.lanes[3]) == 0);
  for (int round = 0; round < 5; ++round) {
    f.own(1, 2);
    f.own(2, 2);
    CHECK(ring.push(1, 2, f.lanes[2]) && ring.push(2, 2, f.lanes[2]));
    CHECK(ring.pop(3, f.lanes[3]) == 1 && ring.pop(3, f.lanes[3]) == 2);
    CHECK(ring.pop(3, f.lanes[3]) == kNone);
  }
}

/// Others use the ring whenever the reader has found a cell.
struct Overtaken {
  static inline std::function<void()> others;
  static void at(RingPoint now) {
    if (now == RingPoint::kTaking) others();
  }
};

void a_reader_catches_up_with_others() {
  Fixture f(8, 1, 3);
  auto others = f.ring();
  auto reader = f.ring<Overtaken>();
  f.own(0, 0);
  CHECK(others.push(0, 0, f.lanes[0]));
  int rounds = 100;
  Overtaken::others = [&] {
    if (rounds-- <= 0) return;
    for (int i = 0; i < 1000; ++i) {
      CHECK(others.pop(1, f.lanes[1]) == 0);
      f.own(0, 0);
      CHECK(others.push(0, 0, f.lanes[0]));
    }
  };
  CHECK((reader.pop_run(1, 2, f.lanes[2]) == Run{0, 1}));
}

}  // namespace

int main() {
  random_use_is_first_in_first_out(0);
  // Shortly before the 31 bits of the lap wrap.
  random_use_is_first_in_first_out((kLapMask + 1) * 8 - 40);
  hints_advance();
  runs_are_split_by_their_takers();
  no_cell_is_lost_or_duplicated_between_threads();
  a_reader_catches_up_with_others();
  for (const auto point : {RingPoint::kPublishing, RingPoint::kMarked, RingPoint::kPublished,
                           RingPoint::kTaking, RingPoint::kTaken}) {
    a_stopped_participant_blocks_no_other(point);
  }
}
