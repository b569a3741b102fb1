#include <unistd.h>

#include <memory>
#include <vector>

#include "channel/telemetry/recorder.hpp"
#include "check.hpp"

using namespace flowtrain;
using namespace flowtrain::channel;

namespace {

constexpr int kMany = 100'000;

/// A lane's record in plain memory, with its recorder.
struct Fixture {
  std::unique_ptr<LaneRecord> record{new LaneRecord{}};
  Recorder recorder{*record, 3, Recording::kOn};

  std::uint64_t timed() const {
    std::uint64_t sum = 0;
    for (const auto& count : record->alloc_wait.counts) sum += count;
    return sum;
  }
  std::vector<EventKind> kinds() const {
    std::vector<EventKind> out;
    record->flight.for_each([&out](const Event& event) { out.push_back(event.kind); });
    return out;
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

/// Without the stride far more than half would be timed. Each interruption of this program adds
/// some timed items.
void some_fast_items_are_timed() {
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

void a_timed_item_is_recorded_until_its_release() {
  Fixture f;
  const std::int64_t leased = f.recorder.leased(nullptr, 7, 64);
  f.recorder.published(leased, 7, 42, 64);
  const std::int64_t taken = f.recorder.taken(f.recorder.publishing(leased, 64), 7, {});
  f.recorder.released(taken, 7, {});
  f.recorder.aborted(7, 64);
  CHECK((f.kinds() == std::vector{EventKind::kLeased, EventKind::kPublished, EventKind::kTaken,
                                  EventKind::kReleased, EventKind::kAborted}));
}

void an_item_that_is_not_timed_is_not_recorded() {
  Fixture f;
  const Descriptor item{};
  CHECK(f.recorder.publishing(0, 64) == 0);
  CHECK(f.recorder.written().bytes == 0 && f.recorder.written().ns == 0);
  f.recorder.published(0, 7, 42, 64);
  CHECK(f.recorder.taken(0, 7, item) == 0);
  f.recorder.released(0, 7, item);
  CHECK(f.kinds().empty());
  for (const Histogram* histogram : {&f.record->transfer, &f.record->queue_wait, &f.record->use}) {
    for (const auto& count : histogram->counts) CHECK(count == 0);
  }
}

}  // namespace

int main() {
  slow_items_are_all_timed();
  some_fast_items_are_timed();
  a_wait_is_timed_among_fast_items();
  a_timed_item_is_recorded_until_its_release();
  an_item_that_is_not_timed_is_not_recorded();
}
