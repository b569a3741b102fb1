// Each rule of the reaper, by the state that a death would have left.

#include "channel/reaper.hpp"

#include <unistd.h>

#include <string>

#include "channel/consumer.hpp"
#include "channel/producer.hpp"
#include "check.hpp"

using namespace flowtrain;
using namespace flowtrain::channel;
using lockfree::CellState;

namespace {

constexpr Layout kLayout{0, 1, {16, 0, 0, 0}, 64};

/// A pool with a producer, a consumer, and one leased cell.
struct Scene {
  Scene()
      : pool(Pool::create({"reaper-" + std::to_string(::getpid()), "test", {"default"}, 16, 16})) {
    pool->add_segment(memory::carve({{64, 8}}), false);
    producer = std::make_shared<Producer>(pool, "default", std::nullopt, Producer::Credits{});
    consumer = std::make_shared<Consumer>(pool, "default");
    other = std::make_shared<Consumer>(pool, "default");
    lease = producer->lease(kLayout, 1);
    cell = 0;
    while (state() != CellState::kOwned) ++cell;
  }
  ~Scene() { pool->close(); }

  CellState state() const { return lockfree::state_of(pool->control().word(cell).load()); }
  std::uint16_t lane_of(const Consumer& c) const {
    for (std::uint32_t i = 0; i < 16; ++i) {
      if (&pool->control().lane(i) == &c.lane()) return static_cast<std::uint16_t>(i);
    }
    return kNoLane;
  }
  std::uint32_t in_ring() const { return pool->control().ring(0).contains(cell) ? 1 : 0; }
  /// The taker died between its swap and its mark: the slot is empty, the cell says kInRing.
  void take_and_die(Consumer& taker) {
    const auto word = pool->control().word(cell).load();
    const auto popped = pool->control().ring(0).pop(lane_of(taker), taker.lane().intent);
    CHECK(popped == cell);
    pool->control().word(cell).store(word);
    taker.lane().intent.cin.store(cell + 1);
  }

  std::shared_ptr<Pool> pool;
  std::shared_ptr<Producer> producer;
  std::shared_ptr<Consumer> consumer, other;
  std::shared_ptr<Lease> lease;
  std::uint32_t cell;
};

void a_lease_of_the_dead_is_freed() {
  Scene s;
  CHECK(reap(*s.pool, s.producer->lane_number()));
  CHECK(s.state() == CellState::kFree);
  CHECK(s.producer->lane().inflight_items.load() == 0);
}

void what_was_published_stays() {
  Scene s;
  s.lease->publish({1, 0});
  CHECK(reap(*s.pool, s.producer->lane_number()));
  CHECK(s.in_ring() == 1 && s.consumer->try_get() != nullptr);
}

void what_was_marked_but_not_published_is_freed() {
  Scene s;
  auto& word = s.pool->control().word(s.cell);
  word.store(lockfree::moved(word.load(), CellState::kInRing, s.producer->lane_number()));
  s.producer->lane().intent.pin.store(s.cell + 1);
  CHECK(reap(*s.pool, s.producer->lane_number()));
  CHECK(s.state() == CellState::kFree && s.producer->lane().intent.pin.load() == 0);
}

void what_was_held_is_delivered_again() {
  Scene s;
  s.lease->publish({7, 0});
  auto item = s.consumer->try_get();
  CHECK(reap(*s.pool, s.lane_of(*s.consumer)));
  auto again = s.other->try_get();
  CHECK(again != nullptr && again->descriptor().key_low == 7 && again->attempt() == 1);
  again->release();
  CHECK(s.state() == CellState::kFree);
  // The dead process would not come back to release its own.
  static_cast<void>(new std::shared_ptr<Item>(item));
}

void what_was_taken_but_not_marked_is_delivered_again() {
  Scene s;
  s.lease->publish({9, 0});
  s.take_and_die(*s.consumer);
  CHECK(reap(*s.pool, s.lane_of(*s.consumer)));
  auto again = s.other->try_get();
  CHECK(again != nullptr && again->descriptor().key_low == 9 && again->attempt() == 1);
}

void an_intent_on_what_another_took_does_nothing() {
  Scene s;
  s.lease->publish({9, 0});
  auto item = s.other->try_get();
  s.consumer->lane().intent.cin.store(s.cell + 1);
  CHECK(reap(*s.pool, s.lane_of(*s.consumer)));
  CHECK(s.state() == CellState::kHeld && s.in_ring() == 0);
}

void a_living_taker_in_the_middle_makes_the_reaper_come_back() {
  Scene s;
  s.lease->publish({9, 0});
  s.take_and_die(*s.consumer);  // Of which the reaper of the producer does not know.
  CHECK(!reap(*s.pool, s.producer->lane_number()));
  s.other->lane().intent.cin.store(s.cell + 1);
  CHECK(!reap(*s.pool, s.lane_of(*s.consumer)));
  s.other->lane().intent.cin.store(0);
  CHECK(reap(*s.pool, s.lane_of(*s.consumer)) && s.in_ring() == 1);
}

void a_producer_in_the_middle_is_left_alone() {
  Scene s;
  auto& word = s.pool->control().word(s.cell);
  word.store(lockfree::moved(word.load(), CellState::kInRing, s.producer->lane_number()));
  s.producer->lane().intent.pin.store(s.cell + 1);
  s.consumer->lane().intent.cin.store(s.cell + 1);  // From the cell's life before.
  CHECK(reap(*s.pool, s.lane_of(*s.consumer)));
  CHECK(s.state() == CellState::kInRing && s.in_ring() == 0);
}

void a_reaper_that_died_while_delivering_again_loses_nothing() {
  Scene s;
  s.lease->publish({11, 0});
  auto item = s.consumer->try_get();
  s.pool->control().cell(s.cell).attempt = 1;
  auto& word = s.pool->control().word(s.cell);
  word.store(lockfree::moved(word.load(), CellState::kInRing, s.producer->lane_number()));
  CHECK(reap(*s.pool, s.producer->lane_number()));
  CHECK(s.in_ring() == 1);
  static_cast<void>(new std::shared_ptr<Item>(item));
}

}  // namespace

int main() {
  a_lease_of_the_dead_is_freed();
  what_was_published_stays();
  what_was_marked_but_not_published_is_freed();
  what_was_held_is_delivered_again();
  what_was_taken_but_not_marked_is_delivered_again();
  an_intent_on_what_another_took_does_nothing();
  a_living_taker_in_the_middle_makes_the_reaper_come_back();
  a_producer_in_the_middle_is_left_alone();
  a_reaper_that_died_while_delivering_again_loses_nothing();
}
