// Every rule of the reaper. Each test constructs the state in which a participant died.

#include <sys/mman.h>
#include <unistd.h>

#include <set>

#include "channel/liveness/reaper.hpp"
#include "check.hpp"
#include "os/mapping.hpp"

using namespace flowtrain;
using namespace flowtrain::channel;
using lockfree::CellState;

namespace {

constexpr std::uint16_t kProducer = 0, kConsumer = 1, kOther = 2, kReaper = 3;
constexpr std::uint32_t kCell = 5;
constexpr lockfree::RunWord kNamed = lockfree::run_word({kCell, 1});

/// A pool's tables in a file of their own, with eight cells of one segment.
struct Fixture {
  Fixture() {
    const Geometry geometry{4, 8, 1, 8};
    const os::Fd file(::memfd_create("control", MFD_CLOEXEC));
    CHECK(::ftruncate(file.get(), static_cast<off_t>(Control::file_bytes(geometry))) == 0);
    control = Control::make(file, "control", geometry);
    control.header().num_cells = 8;
  }

  bool reap(std::uint16_t dead, const std::set<std::uint16_t>& also_dead = {}) {
    return channel::reap(control, dead, kReaper, [&](std::uint16_t lane) {
      return lane != dead && !also_dead.contains(lane);
    });
  }
  void set(CellState state, std::uint16_t lane, std::uint32_t cell = kCell) {
    control.word(cell) = lockfree::cell_word(state, lane, 1);
  }
  void publish(std::uint16_t lane = kProducer) {
    set(CellState::kLeased, lane);
    CHECK(control.ring(0).push(kCell, lane, control.lane(lane).intent));
  }
  /// Takes the cell out of the ring, as between a taker's compare-and-swap and its store of the
  /// word.
  void take_away() {
    const auto word = control.word(kCell).load();
    CHECK(control.ring(0).pop(kOther, control.lane(kOther).intent) == kCell);
    control.word(kCell) = word;
  }
  std::atomic<lockfree::RunWord>& publishing(std::uint16_t lane) {
    return control.lane(lane).intent.publishing;
  }
  std::atomic<lockfree::RunWord>& taking(std::uint16_t lane) {
    return control.lane(lane).intent.taking;
  }
  CellState state() const { return lockfree::state_of(control.word(kCell)); }
  bool in_ring() const { return control.ring(0).contains(kCell); }
  bool redelivered() const { return in_ring() && control.cell(kCell).attempt == 1; }

  Control control;
};

void a_cell_being_written_is_freed() {
  Fixture f;
  f.set(CellState::kLeased, kProducer);
  f.set(CellState::kLeased, kOther, kCell + 1);
  CHECK(f.reap(kProducer));
  CHECK(f.state() == CellState::kFree);
  CHECK(lockfree::generation_of(f.control.word(kCell)) == 2);
  CHECK(lockfree::owner_of(f.control.word(kCell + 1)) == kOther);  // Of another lane: unchanged.
}

void a_cell_being_read_is_delivered_again() {
  Fixture f;
  f.set(CellState::kTaken, kConsumer);
  CHECK(f.reap(kConsumer));
  CHECK(f.redelivered() && f.state() == CellState::kPublished);
  CHECK(f.control.lane(kReaper).items_redelivered == 1);
}

void a_published_cell_stays_in_the_ring() {
  Fixture f;
  f.publish();
  f.publishing(kProducer) = kNamed;  // Died before it cleared this.
  CHECK(f.reap(kProducer));
  CHECK(f.in_ring() && f.control.cell(kCell).attempt == 0 && f.publishing(kProducer) == 0);
}

void a_cell_never_published_is_freed() {
  Fixture f;
  f.set(CellState::kPublished, kProducer);
  f.publishing(kProducer) = kNamed;
  CHECK(f.reap(kProducer));
  CHECK(f.state() == CellState::kFree && !f.in_ring());
}

void an_interrupted_redelivery_is_finished() {
  Fixture f;
  f.set(CellState::kPublished, kOther);  // A reaper that died before its push.
  f.control.cell(kCell).attempt = 1;
  CHECK(f.reap(kOther));
  CHECK(f.redelivered());
}

void an_item_put_back_by_a_dead_consumer_is_not_lost() {
  Fixture f;
  f.set(CellState::kPublished,
        kConsumer);  // It could not map the memory, and died before its push.
  f.control.cell(kCell).producer = kProducer;
  CHECK(f.reap(kConsumer));
  CHECK(f.in_ring() && f.state() == CellState::kPublished);
}

void a_cell_that_a_living_consumer_takes_is_left_alone() {
  Fixture f;
  f.publish();
  f.take_away();
  f.taking(kConsumer) = kNamed;
  CHECK(!f.reap(kProducer));
  CHECK(f.state() == CellState::kPublished && !f.in_ring());
  f.set(CellState::kTaken, kConsumer);  // The taker continued.
  f.taking(kConsumer) = 0;
  CHECK(f.reap(kProducer));
  CHECK(f.state() == CellState::kTaken);
}

void a_cell_taken_and_never_used_is_delivered_again() {
  Fixture f;
  f.publish();
  f.take_away();
  f.taking(kConsumer) = kNamed;
  CHECK(f.reap(kConsumer));
  CHECK(f.redelivered() && f.taking(kConsumer) == 0);
}

void an_intent_without_effect_is_cleared() {
  Fixture f;
  f.publish();
  f.taking(kConsumer) = kNamed;  // Died before its compare-and-swap.
  CHECK(f.reap(kConsumer));
  CHECK(f.in_ring() && f.control.cell(kCell).attempt == 0 && f.taking(kConsumer) == 0);
  f.take_away();
  f.set(CellState::kTaken, kOther);
  f.taking(kConsumer) = kNamed;  // Died after another consumer was faster.
  CHECK(f.reap(kConsumer));
  CHECK(f.state() == CellState::kTaken && !f.in_ring());
}

void a_cell_that_a_living_producer_publishes_is_left_alone() {
  Fixture f;
  f.publish();
  f.take_away();
  f.publishing(kProducer) = kNamed;
  f.taking(kConsumer) = kNamed;
  CHECK(!f.reap(kConsumer));  // Taken, or not yet published.
  CHECK(!f.in_ring());
  f.publishing(kProducer) = 0;  // So it had been published.
  CHECK(f.reap(kConsumer));
  CHECK(f.redelivered());
}

/// A consumer takes an item that it had put back, and puts it back again, each just after a read of
/// the reaper.
struct PutBackMeanwhile {
  using Hooks = lockfree::NoHooks;
  static constexpr bool kChecksAgain = true;
  static inline Fixture* f;
  static void at(ReapPoint point) {
    Control& control = f->control;
    auto& intent = control.lane(kOther).intent;
    if (point == ReapPoint::kNotPublishing) CHECK(control.ring(0).pop(kOther, intent) == kCell);
    if (point != ReapPoint::kNotTaking) return;
    intent.publishing = kNamed;
    control.word(kCell) = lockfree::moved(control.word(kCell), CellState::kPublished, kOther);
  }
};

void an_item_put_back_again_meanwhile_is_not_delivered_twice() {
  Fixture f;
  f.publish();
  f.taking(kConsumer) = kNamed;  // Died before its compare-and-swap.
  auto& intent = f.control.lane(kOther).intent;
  CHECK(f.control.ring(0).pop(kOther, intent) == kCell);
  CHECK(f.control.ring(0).push(kCell, kOther, intent));
  PutBackMeanwhile::f = &f;
  const auto alive = [](std::uint16_t lane) { return lane != kConsumer; };
  CHECK(!reap<PutBackMeanwhile>(f.control, kConsumer, kReaper, alive));
  CHECK(!f.in_ring() && f.control.cell(kCell).attempt == 0);
}

void a_cell_waits_while_any_living_lane_is_taking_it() {
  Fixture f;
  f.publish();
  f.take_away();
  f.taking(kConsumer) = kNamed;
  f.taking(kOther) = kNamed;  // One of the two took it.
  CHECK(!f.reap(kConsumer));
  CHECK(!f.in_ring());
  f.taking(kOther) = 0;
  CHECK(f.reap(kConsumer));
  CHECK(f.redelivered());
}

/// The producer dies between its compare-and-swap and clearing `publishing`, the taker between its
/// own and its word. In either order of recovery the item is delivered once more.
void both_ends_dead_lose_nothing(bool producer_first) {
  Fixture f;
  f.publish();
  f.take_away();
  f.publishing(kProducer) = kNamed;
  f.taking(kConsumer) = kNamed;
  const std::uint16_t first = producer_first ? kProducer : kConsumer;
  const std::uint16_t second = producer_first ? kConsumer : kProducer;
  CHECK(f.reap(first, {second}));
  CHECK(f.reap(second, {first}));
  CHECK(f.redelivered() && f.publishing(kProducer) == 0 && f.taking(kConsumer) == 0);
  CHECK(f.control.ring(0).pop(kOther, f.control.lane(kOther).intent) == kCell && !f.in_ring());
}

/// A consumer that took three of four cells dies when it has marked the first.
void each_cell_of_a_run_is_settled() {
  Fixture f;
  const lockfree::Run all{2, 4};
  for (std::uint32_t c = all.first; c < all.first + all.count; ++c) {
    f.set(CellState::kLeased, kProducer, c);
  }
  auto ring = f.control.ring(0);
  CHECK(ring.push_run(all, kProducer, f.control.lane(kProducer).intent));
  CHECK(ring.pop_run(3, kConsumer, f.control.lane(kConsumer).intent) == (lockfree::Run{2, 3}));
  f.set(CellState::kPublished, kProducer, 3);
  f.set(CellState::kPublished, kProducer, 4);
  f.taking(kConsumer) = lockfree::run_word({2, 3});
  CHECK(f.reap(kProducer) == false);  // Its taker may live.
  CHECK(f.reap(kConsumer, {kProducer}));
  CHECK(f.reap(kProducer));
  std::multiset<std::uint32_t> again;
  for (;;) {
    const std::uint32_t c = ring.pop(kOther, f.control.lane(kOther).intent);
    if (c == ring.kNone) break;
    CHECK(f.control.cell(c).attempt == (c == 5 ? 0 : 1));
    again.insert(c);
  }
  CHECK(again == (std::multiset<std::uint32_t>{2, 3, 4, 5}));
}

void all_cells_of_a_run_never_published_are_freed() {
  Fixture f;
  f.set(CellState::kPublished, kProducer, 2);
  f.set(CellState::kLeased, kProducer, 3);  // Died between its marks.
  f.publishing(kProducer) = lockfree::run_word({2, 2});
  CHECK(f.reap(kProducer));
  for (const std::uint32_t c : {2, 3}) {
    CHECK(lockfree::state_of(f.control.word(c)) == CellState::kFree);
  }
}

}  // namespace

int main() {
  each_cell_of_a_run_is_settled();
  all_cells_of_a_run_never_published_are_freed();
  a_cell_being_written_is_freed();
  a_cell_being_read_is_delivered_again();
  a_published_cell_stays_in_the_ring();
  a_cell_never_published_is_freed();
  an_interrupted_redelivery_is_finished();
  an_item_put_back_by_a_dead_consumer_is_not_lost();
  a_cell_that_a_living_consumer_takes_is_left_alone();
  a_cell_taken_and_never_used_is_delivered_again();
  an_intent_without_effect_is_cleared();
  a_cell_that_a_living_producer_publishes_is_left_alone();
  an_item_put_back_again_meanwhile_is_not_delivered_twice();
  a_cell_waits_while_any_living_lane_is_taking_it();
  both_ends_dead_lose_nothing(true);
  both_ends_dead_lose_nothing(false);
}
