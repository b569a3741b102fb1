#include <unistd.h>

#include <memory>

#include "channel/recorder.hpp"
#include "check.hpp"

using namespace flowtrain;
using namespace flowtrain::channel;

namespace {

constexpr int kMany = 100'000;

/// A lane's record in plain memory, and who writes it.
struct Fixture {
  std::unique_ptr<LaneRecord> record{new LaneRecord{}};
  Recorder recorder{*record, 3, Recording::kOn};

  std::uint64_t timed() const {
    std::uint64_t sum = 0;
    for (const auto& count : record->alloc_wait.counts) sum += count;
    return sum;
  }
  void lease_many() {
    for (int i = 0; i < kMany; ++i) recorder.leased(nullptr, 7, 64);
  }
};

void slow_items_are_all_timed() {
  Fixture f;
  for (int i = 0; i < 100; ++i) {
    CHECK(f.recorder.leased(nullptr, 7, 64) != 0);
    ::usleep(10);
  }
  CHECK(f.timed() == 100);
}

/// Far more than half would be timed, were it not for the stride; each interruption of this
/// program lets some more be.
void of_fast_items_some_are_timed() {
  Fixture f;
  f.lease_many();
  CHECK(f.timed() > kMany / 1000 && f.timed() < kMany / 2);
}

void a_wait_is_timed_among_fast_items() {
  Fixture f;
  f.lease_many();
  for (int i = 0; i < 100; ++i) {
    const Deadline since = Deadline::in(1.0);
    CHECK(f.recorder.leased(&since, 7, 64) != 0);
  }
}

void every_act_is_an_event_in_order() {
  Fixture f;
  f.lease_many();
  f.recorder.published(7, 42, 64);
  int events = 0;
  std::int64_t last_ns = 1;
  Event last{};
  f.record->flight.for_each([&](const Event& event) {
    CHECK(event.time_ns >= last_ns);
    last_ns = event.time_ns;
    last = event;
    ++events;
  });
  CHECK(events == FlightRecorder::kKept);
  CHECK(last.act == Act::kPublished && last.key_low == 42 && last.lane == 3);
}

void what_is_not_timed_stays_so_to_its_end() {
  Fixture f;
  const Descriptor item{};
  CHECK(f.recorder.publishing(0, 64) == 0);
  CHECK(f.recorder.written().bytes == 0 && f.recorder.written().ns == 0);
  CHECK(f.recorder.taken(0, 7, item) == 0);
  f.recorder.released(0, 7, item);
  for (const Histogram* histogram : {&f.record->transfer, &f.record->queue_wait, &f.record->use}) {
    for (const auto& count : histogram->counts) CHECK(count == 0);
  }
}

}  // namespace

int main() {
  slow_items_are_all_timed();
  of_fast_items_some_are_timed();
  a_wait_is_timed_among_fast_items();
  every_act_is_an_event_in_order();
  what_is_not_timed_stays_so_to_its_end();
}
