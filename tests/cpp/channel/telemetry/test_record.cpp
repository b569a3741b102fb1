// Histograms and the flight recorder: bounds of buckets, and the events kept after a wrap.
#include <memory>
#include <vector>

#include "channel/telemetry/record.hpp"
#include "check.hpp"

namespace {

using namespace flowtrain::channel;

void a_duration_falls_into_the_bucket_of_its_power_of_two() {
  auto histogram = std::make_unique<Histogram>();
  for (const std::int64_t ns : {-5L, 0L, 1L, 2L, 3L, 4L, 1023L, 1024L, INT64_MAX}) {
    histogram->add(ns);
  }
  CHECK(histogram->counts[0] == 3);
  CHECK(histogram->counts[1] == 2);
  CHECK(histogram->counts[2] == 1);
  CHECK(histogram->counts[9] == 1);
  CHECK(histogram->counts[10] == 1);
  CHECK(histogram->counts[Histogram::kBuckets - 1] == 1);
}

std::vector<std::uint64_t> keys(const FlightRecorder& recorder) {
  std::vector<std::uint64_t> out;
  recorder.for_each([&](const Event& event) { out.push_back(event.key_low); });
  return out;
}

void the_last_events_are_kept_in_order() {
  auto recorder = std::make_unique<FlightRecorder>();
  CHECK(keys(*recorder).empty());
  constexpr std::uint64_t kNotes = 5 * FlightRecorder::kKept + 7;
  for (std::uint64_t i = 0; i < kNotes; ++i) recorder->note({0, i, 0, 0, EventKind::kTaken, 0});
  const std::vector<std::uint64_t> kept = keys(*recorder);
  CHECK(kept.size() == FlightRecorder::kKept);
  CHECK(kept.front() == kNotes - FlightRecorder::kKept);
  CHECK(kept.back() == kNotes - 1);
}

void readers_skip_events_that_are_overwritten_meanwhile() {
  auto recorder = std::make_unique<FlightRecorder>();
  std::uint64_t n = 0;
  for (; n < FlightRecorder::kKept; ++n) recorder->note({0, n, 0, 0, EventKind::kTaken, 0});
  std::uint64_t expected = 0, seen = 0;
  recorder->for_each([&](const Event& event) {
    CHECK(event.key_low >= expected);
    expected = event.key_low + 1;
    ++seen;
    for (int i = 0; i < 3; ++i, ++n) recorder->note({0, n, 0, 0, EventKind::kTaken, 0});
  });
  CHECK(seen < FlightRecorder::kKept && expected <= FlightRecorder::kKept);
}

}  // namespace

int main() {
  a_duration_falls_into_the_bucket_of_its_power_of_two();
  the_last_events_are_kept_in_order();
  readers_skip_events_that_are_overwritten_meanwhile();
}
