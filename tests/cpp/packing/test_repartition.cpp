#include <cstdlib>

#include "check.hpp"
#include "packing/draw.hpp"
#include "packing/repartition.hpp"

using namespace flowtrain::packing;

namespace {

void every_division_is_considered() {
  std::mt19937_64 random(3);
  int improved = 0;
  for (int round = 0; round < 200; ++round) {
    const auto count = static_cast<std::size_t>(uniform(random, 2, 12));
    const Drawn drawn = draw(random, count, 30, 1000);
    Bins bins(drawn.samples(), 2);
    std::int64_t total = 0;
    for (std::uint32_t i = 0; i < count; ++i) {
      bins.add(i, static_cast<std::uint32_t>(random() % 2));
      total += drawn.cost[i];
    }
    const std::int64_t target = uniform(random, 0, total);
    std::int64_t best = std::abs(bins.load(0) - target);
    const std::int64_t before = best;
    for (std::uint32_t subset = 0; subset < (1U << count); ++subset) {
      std::int64_t sum = 0;
      for (std::size_t i = 0; i < count; ++i) sum += (subset >> i & 1U) ? drawn.cost[i] : 0;
      best = std::min(best, std::abs(sum - target));
    }
    const Divided divided = Repartitioner(bins, 1 << 20).divide(0, 1, {target, 14, 0, 0});
    CHECK(std::abs(bins.load(0) - target) == best);
    CHECK(divided.better == (best < before));
    CHECK(bins.load(0) + bins.load(1) == total);
    improved += divided.better;
  }
  CHECK(improved > 100);
}

/// Fifty samples of three kinds: far more divisions than of fourteen samples.
void equal_samples_move_in_bundles() {
  std::mt19937_64 random(5);
  for (int round = 0; round < 60; ++round) {
    const std::int64_t cost[3] = {uniform(random, 500, 999), uniform(random, 200, 499), 101};
    Drawn drawn;
    for (int i = 0; i < 50; ++i) {
      drawn.cost.push_back(cost[i % 3]);
      drawn.tokens.push_back(cost[i % 3] / 10);
    }
    Bins bins(drawn.samples(), 2);
    for (std::uint32_t i = 0; i < 50; ++i) bins.add(i, static_cast<std::uint32_t>(random() % 2));
    const std::int64_t total = bins.load(0) + bins.load(1), target = uniform(random, 0, total);
    std::int64_t best = total;
    for (std::int64_t x = 0; x <= 17; ++x) {
      for (std::int64_t y = 0; y <= 17; ++y) {
        for (std::int64_t z = 0; z <= 16; ++z) {
          best = std::min(best, std::abs(x * cost[0] + y * cost[1] + z * cost[2] - target));
        }
      }
    }
    Repartitioner(bins, 1 << 20).divide(0, 1, {target, 20, 0, 0});
    CHECK(std::abs(bins.load(0) - target) == best);
    CHECK(bins.load(0) + bins.load(1) == total);
  }
}

void costs_beyond_a_word_are_exact() {
  const std::int64_t large = std::int64_t{1} << 59;
  const Drawn drawn{{1, 1, 1, 1}, {large, large + 3, large + 1, 2}};
  Bins bins(drawn.samples(), 2);
  for (std::uint32_t i = 0; i < 4; ++i) bins.add(i, 0);
  Repartitioner(bins, 100).divide(0, 1, {2 * large + 4, 14, 0, 0});
  CHECK(bins.load(0) == 2 * large + 4);
}

void the_cap_holds_and_nothing_is_lost() {
  std::mt19937_64 random(4);
  for (int round = 0; round < 300; ++round) {
    const auto count = static_cast<std::size_t>(uniform(random, 2, 60));
    const Drawn drawn = draw(random, count, round % 3 == 0 ? 5 : 30, 1000);
    Bins bins(drawn.samples(), 2);
    std::int64_t total = 0;
    for (std::uint32_t i = 0; i < count; ++i) {
      bins.add(i, i % 2);
      total += drawn.cost[i];
    }
    const std::int64_t cap = std::max(bins.tokens(0), bins.tokens(1)) + uniform(random, 0, 10);
    const std::int64_t target = total / 2, before = std::abs(bins.load(0) - target);
    const auto offset = static_cast<std::uint32_t>(round % 7);
    Repartitioner(bins, cap).divide(0, 1, {target, 12, offset, 0});
    CHECK(std::abs(bins.load(0) - target) <= before);
    CHECK(bins.tokens(0) <= cap && bins.tokens(1) <= cap);
    std::int64_t load[2] = {0, 0};
    for (std::uint32_t i = 0; i < count; ++i) {
      CHECK(bins.bin_of()[i] < 2);
      load[bins.bin_of()[i]] += drawn.cost[i];
    }
    CHECK(load[0] == bins.load(0) && load[1] == bins.load(1) && load[0] + load[1] == total);
  }
}

}  // namespace

int main() {
  every_division_is_considered();
  equal_samples_move_in_bundles();
  costs_beyond_a_word_are_exact();
  the_cap_holds_and_nothing_is_lost();
}
