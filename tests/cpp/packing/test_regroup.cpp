#include <algorithm>

#include "check.hpp"
#include "packing/draw.hpp"
#include "packing/refine.hpp"
#include "packing/regroup.hpp"
#include "packing/schedule.hpp"

using namespace flowtrain::packing;

namespace {

std::int64_t heaviest(const Bins& bins) {
  return *std::max_element(bins.loads().begin(), bins.loads().end());
}

/// Each bin should hold one of each kind, and no exchange of two bins is a step towards that.
void three_bins_part_what_two_cannot() {
  const Drawn drawn{std::vector<std::int64_t>(9, 1), {27, 27, 14, 14, 14, 27, 5, 5, 5}};
  Bins bins(drawn.samples(), 3);
  for (std::uint32_t i = 0; i < 9; ++i) bins.add(i, i < 2 ? 0 : i < 5 ? 1 : 2);
  refine(bins, std::vector<std::int64_t>(3, 46), 0, 9,
         {.passes = 64, .work = 1 << 20, .patience = 64});
  CHECK(heaviest(bins) == 54);
  regroup(bins, 46, 9, 1 << 12);
  CHECK(heaviest(bins) == 46);
}

void no_bin_becomes_heavier_than_the_heaviest_or_fuller_than_the_cap() {
  std::mt19937_64 random(7);
  int lighter = 0;
  for (int round = 0; round < 300; ++round) {
    const auto count = static_cast<std::size_t>(uniform(random, 3, 60));
    const auto of = static_cast<std::uint32_t>(uniform(random, 1, 9));
    const Drawn drawn = draw(random, count, 30, 1000);
    Bins bins(drawn.samples(), of);
    std::int64_t cap = 0;
    // The first sample waits: it has no bin.
    for (std::uint32_t i = 1; i < count; ++i) {
      bins.add(i, static_cast<std::uint32_t>(random() % of));
      cap = std::max(cap, bins.tokens(bins.bin_of()[i]));
    }
    const std::int64_t before = heaviest(bins);
    regroup(bins, 0, cap, static_cast<std::uint64_t>(uniform(random, 0, 8000)));
    CHECK(heaviest(bins) <= before);
    lighter += heaviest(bins) < before;
    std::vector<std::int64_t> load(of), tokens(of);
    CHECK(bins.bin_of()[0] == kNone);
    for (std::uint32_t i = 1; i < count; ++i) {
      CHECK(bins.bin_of()[i] < of);
      load[bins.bin_of()[i]] += drawn.cost[i];
      tokens[bins.bin_of()[i]] += drawn.tokens[i];
    }
    for (std::uint32_t b = 0; b < of; ++b) {
      CHECK(load[b] == bins.load(b) && tokens[b] == bins.tokens(b) && tokens[b] <= cap);
    }
  }
  CHECK(lighter > 100);
}

/// 20 + 20 + 10 twice and 10 + 5 * 8: longest first gives every bin a 20, and pairs leave 52.
void clusters_of_sizes_reach_the_bound() {
  const Drawn drawn{std::vector<std::int64_t>(12, 1), {20, 20, 20, 20, 10, 10, 10, 8, 8, 8, 8, 8}};
  const Schedule found = schedule(drawn.samples(), {3, 1, 12}, Objective::kMakespan, true);
  CHECK(found.bound == 50 && found.value == 50);
}

}  // namespace

int main() {
  three_bins_part_what_two_cannot();
  no_bin_becomes_heavier_than_the_heaviest_or_fuller_than_the_cap();
  clusters_of_sizes_reach_the_bound();
}
