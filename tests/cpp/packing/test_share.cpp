#include <cstdlib>

#include "check.hpp"
#include "packing/draw.hpp"
#include "packing/share.hpp"

using namespace flowtrain::packing;

namespace {

void every_division_is_looked_at() {
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
    const std::int64_t wish = uniform(random, 0, total);
    std::int64_t best = std::abs(bins.load(0) - wish);
    const std::int64_t before = best;
    for (std::uint32_t subset = 0; subset < (1U << count); ++subset) {
      std::int64_t sum = 0;
      for (std::size_t i = 0; i < count; ++i) sum += (subset >> i & 1U) ? drawn.cost[i] : 0;
      best = std::min(best, std::abs(sum - wish));
    }
    const Shared shared = share_anew(bins, 0, 1, 1 << 20, {wish, 14, 0, 0});
    CHECK(std::abs(bins.load(0) - wish) == best);
    CHECK(shared.better == (best < before));
    CHECK(bins.load(0) + bins.load(1) == total);
    improved += shared.better;
  }
  CHECK(improved > 100);
}

void the_cap_holds_and_nothing_is_lost() {
  std::mt19937_64 random(4);
  for (int round = 0; round < 300; ++round) {
    const auto count = static_cast<std::size_t>(uniform(random, 2, 60));
    const Drawn drawn = draw(random, count, 30, 1000);
    Bins bins(drawn.samples(), 2);
    std::int64_t total = 0;
    for (std::uint32_t i = 0; i < count; ++i) {
      bins.add(i, i % 2);
      total += drawn.cost[i];
    }
    const std::int64_t cap = std::max(bins.tokens(0), bins.tokens(1)) + uniform(random, 0, 10);
    const std::int64_t wish = total / 2, before = std::abs(bins.load(0) - wish);
    const auto turn = static_cast<std::uint32_t>(round % 7);
    share_anew(bins, 0, 1, cap, {wish, 12, turn, 0});
    CHECK(std::abs(bins.load(0) - wish) <= before);
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
  every_division_is_looked_at();
  the_cap_holds_and_nothing_is_lost();
}
