#include <algorithm>
#include <numeric>

#include "check.hpp"
#include "packing/draw.hpp"
#include "packing/layout.hpp"
#include "packing/order.hpp"
#include "packing/place.hpp"

using namespace flowtrain::packing;

namespace {

void the_order_is_stable_and_descending() {
  std::mt19937_64 random(5);
  for (const std::size_t count : {0, 1, 2, 100, 5000}) {
    for (const std::int64_t most : {std::int64_t{3}, std::int64_t{1} << 45}) {
      Drawn drawn = draw(random, count, 20, 20);
      for (std::int64_t& cost : drawn.cost) cost = uniform(random, 0, most);
      std::vector<std::uint32_t> expected(count);
      std::iota(expected.begin(), expected.end(), 0U);
      std::stable_sort(expected.begin(), expected.end(), [&](std::uint32_t a, std::uint32_t b) {
        return std::pair(drawn.cost[a], drawn.tokens[a]) >
               std::pair(drawn.cost[b], drawn.tokens[b]);
      });
      CHECK(std::ranges::equal(order_by_cost(drawn.samples()), expected));
    }
  }
}

/// The bin farthest below its target among all that have room, found by looking at each.
void each_sample_goes_where_most_is_missing() {
  std::mt19937_64 random(6);
  std::size_t left_over = 0;
  for (int round = 0; round < 300; ++round) {
    const auto count = static_cast<std::size_t>(uniform(random, 1, 60));
    const auto bins_count = static_cast<std::uint32_t>(uniform(random, 1, 12));
    const Drawn drawn = draw(random, count, 20, 500);
    std::vector<std::int64_t> targets(bins_count);
    for (std::int64_t& target : targets) target = uniform(random, 0, 2000);
    const std::int64_t cap = uniform(random, 20, 120);
    const auto order = order_by_cost(drawn.samples());
    Bins bins(drawn.samples(), bins_count);
    const std::size_t unplaced = place(bins, order, targets, cap);
    left_over += unplaced;

    std::vector<std::int64_t> load(bins_count), tokens(bins_count);
    std::size_t missing = 0;
    for (const std::uint32_t i : order) {
      std::uint32_t best = kNone;
      for (std::uint32_t b = 0; b < bins_count; ++b) {
        if (tokens[b] + drawn.tokens[i] > cap) continue;
        if (best == kNone || targets[b] - load[b] > targets[best] - load[best]) best = b;
      }
      CHECK(bins.bin_of()[i] == best);
      if (best == kNone) {
        ++missing;
        continue;
      }
      load[best] += drawn.cost[i];
      tokens[best] += drawn.tokens[i];
    }
    CHECK(missing == unplaced);
  }
  CHECK(left_over > 100);
}

/// In any order of slots and ranks no other cut of the bins makes a shorter sum.
void aligned_bins_make_the_shortest_slots() {
  std::mt19937_64 random(7);
  for (int round = 0; round < 200; ++round) {
    const std::uint32_t ranks = round % 2 == 0 ? 2 : 3;
    std::vector<std::int64_t> loads(6);
    for (std::int64_t& load : loads) load = uniform(random, 0, 9);
    const std::vector<std::int64_t> tokens(6, 1);
    const Samples samples{tokens, loads};
    Bins bins(samples, 6);
    for (std::uint32_t b = 0; b < 6; ++b) bins.add(b, b);
    std::vector<std::uint32_t> any(loads.size());
    std::iota(any.begin(), any.end(), 0U);
    const auto sum_of_slowest = [&](Order order) {
      std::int64_t sum = 0;
      for (std::size_t first = 0; first < order.size(); first += ranks) {
        std::int64_t slowest = 0;
        for (std::size_t k = 0; k < ranks; ++k) {
          slowest = std::max(slowest, loads[order[first + k]]);
        }
        sum += slowest;
      }
      return sum;
    };
    std::int64_t best = INT64_MAX;
    do best = std::min(best, sum_of_slowest(any));
    while (std::next_permutation(any.begin(), any.end()));
    const auto aligned = align(bins);
    CHECK(sum_of_slowest(aligned) == best);
    Schedule out(6);
    lay_out(out, bins, ranks);
    std::vector<std::int32_t> dealt;
    for (std::size_t i = 0; i < 6; ++i) {
      dealt.push_back(out.slot[i] * static_cast<std::int32_t>(ranks) + out.rank[i]);
    }
    std::sort(dealt.begin(), dealt.end());
    for (std::int32_t b = 0; b < 6; ++b) CHECK(dealt[static_cast<std::size_t>(b)] == b);
  }
}

}  // namespace

int main() {
  the_order_is_stable_and_descending();
  each_sample_goes_where_most_is_missing();
  aligned_bins_make_the_shortest_slots();
}
