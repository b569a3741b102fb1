#include "check.hpp"
#include "packing/crowd.hpp"
#include "packing/draw.hpp"
#include "packing/order.hpp"
#include "packing/schedule.hpp"

using namespace flowtrain::packing;

namespace {

/// Two of three bins must hold three samples each; a pigeon hole tells of one such bin alone.
void a_crowd_bounds_more_than_a_pigeon_hole() {
  const std::vector<std::int64_t> cost{7, 7, 7, 6, 6, 5, 5, 5}, tokens(8, 1);
  const Samples samples{tokens, cost};
  const std::vector<std::uint32_t> order = order_by_cost(samples);
  const Crowd crowd = find_crowd(samples, order, 3);
  CHECK(crowd.hole == 16 && crowd.bound == 17);
  CHECK(crowd.bins == 2 && crowd.first == 2 && crowd.end == 8);
  Bins bins(samples, 3);
  CHECK(place_crowd(bins, order, crowd, 3) == 0);
  CHECK(bins.load(0) == 14 && bins.tokens(1) == 3 && bins.tokens(2) == 3);
  Bins full(samples, 3);
  CHECK(place_crowd(full, order, crowd, 2) == 2);
}

/// A few more than seven samples of about an eighth to a bin, and small ones: bins of eight cost
/// more than the mean, and are even only if they hold the smallest.
void crowds_are_parted() {
  std::mt19937_64 random(6);
  for (int round = 0; round < 8; ++round) {
    const Grid grid{16, 8, 1 << 20};
    Drawn drawn;
    for (int i = 0; i < 925; ++i)
      drawn.cost.push_back(12500 + uniform(random, 0, 50) * uniform(random, 0, 50));
    for (int i = 0; i < 100; ++i) drawn.cost.push_back(uniform(random, 3000, 9000));
    drawn.tokens = drawn.cost;
    const Schedule found = schedule(drawn.samples(), grid, Objective::kMakespan, true);
    CHECK(found.value - found.bound <= found.bound / 2000);
  }
}

}  // namespace

int main() {
  a_crowd_bounds_more_than_a_pigeon_hole();
  crowds_are_parted();
}
