#include <algorithm>
#include <array>
#include <cstdlib>
#include <numeric>

#include "check.hpp"
#include "packing/best_fit.hpp"
#include "packing/deferral.hpp"
#include "packing/differencing.hpp"
#include "packing/draw.hpp"
#include "packing/order.hpp"
#include "packing/two_modules.hpp"

using namespace flowtrain::packing;

namespace {

std::vector<std::uint32_t> as_they_come(std::size_t count) {
  std::vector<std::uint32_t> order(count);
  std::iota(order.begin(), order.end(), 0U);
  return order;
}

void best_fit_takes_the_smallest_room_that_suffices() {
  std::mt19937_64 random(11);
  for (const std::int64_t cap : {7, 64, 100, 5000}) {
    for (int round = 0; round < 40; ++round) {
      std::vector<std::int64_t> tokens(80);
      for (std::int64_t& t : tokens) t = uniform(random, 0, cap);
      const std::vector<std::uint32_t> bins = best_fit(tokens, as_they_come(tokens.size()), cap);
      std::vector<std::int64_t> room;
      for (std::size_t i = 0; i < tokens.size(); ++i) {
        std::int64_t smallest = INT64_MAX;
        for (const std::int64_t r : room) {
          if (r >= tokens[i]) smallest = std::min(smallest, r);
        }
        if (smallest == INT64_MAX) {
          CHECK(bins[i] == room.size());
          room.push_back(cap);
        } else {
          CHECK(bins[i] < room.size() && room[bins[i]] == smallest);
        }
        room[bins[i]] -= tokens[i];
      }
    }
  }
}

void next_fit_closes_a_bin_at_either_cap() {
  const std::vector<std::int64_t> tokens{4, 4, 4, 1, 1, 1}, tiles{1, 1, 1, 2, 2, 0};
  const std::vector<std::uint32_t> bins = next_fit(tokens, tiles, as_they_come(6), 8, 3);
  CHECK((bins == std::vector<std::uint32_t>{0, 0, 1, 1, 2, 2}));
}

void differencing_is_near_even_and_counts_are_equal_if_asked() {
  // The textbook case: 8 7 6 5 4 in two parts differ by 2.
  const std::vector<std::int64_t> five{8, 7, 6, 5, 4};
  const std::vector<std::uint32_t> two = difference(five, as_they_come(5), 2, false);
  std::int64_t apart = 0;
  for (std::size_t i = 0; i < 5; ++i) apart += two[i] == two[0] ? five[i] : -five[i];
  CHECK(std::abs(apart) == 2);

  std::mt19937_64 random(12);
  for (const bool equal_count : {false, true}) {
    for (const std::size_t count : {0, 1, 3, 7, 64, 101}) {
      std::vector<std::int64_t> values(count);
      for (std::int64_t& value : values) value = uniform(random, 500, 1000);
      const std::vector<std::uint32_t> part =
          difference(values, order_descending(values), 4, equal_count);
      std::vector<std::int64_t> sums(4);
      std::vector<std::size_t> counts(4);
      for (std::size_t i = 0; i < count; ++i) {
        CHECK(part[i] < 4);
        sums[part[i]] += values[i];
        ++counts[part[i]];
      }
      const auto [few, many] = std::minmax_element(counts.begin(), counts.end());
      if (equal_count) CHECK(*many - *few <= 1);
      const auto [low, high] = std::minmax_element(sums.begin(), sums.end());
      if (count == 64) CHECK(*high - *low <= 20);
    }
  }
}

void the_nearest_subset_is_found() {
  std::mt19937_64 random(13);
  for (int round = 0; round < 200; ++round) {
    std::vector<std::int64_t> values(static_cast<std::size_t>(uniform(random, 0, 10)));
    for (std::int64_t& value : values) value = uniform(random, 0, round % 2 ? 50 : 3000);
    const std::int64_t target = uniform(random, 0, 6000);
    std::int64_t best = INT64_MAX;
    for (std::uint32_t subset = 0; subset < (1U << values.size()); ++subset) {
      std::int64_t sum = 0;
      for (std::size_t i = 0; i < values.size(); ++i) sum += (subset >> i & 1U) ? values[i] : 0;
      best = std::min(best, std::abs(sum - target));
    }
    const std::vector<std::uint8_t> chosen = nearest_subset(values, target);
    std::int64_t sum = 0;
    for (std::size_t i = 0; i < values.size(); ++i) sum += chosen[i] ? values[i] : 0;
    CHECK(std::abs(sum - target) == best);
  }
  // Beyond 65,536 it is near to a 65,536th of the total a value.
  const std::vector<std::int64_t> large{1'000'000'007, 2'000'000'011, 4'000'000'001};
  CHECK((nearest_subset(large, 5'000'000'000) == std::vector<std::uint8_t>{1, 0, 1}));
}

void matching_is_the_least_bottleneck() {
  std::mt19937_64 random(14);
  for (int round = 0; round < 300; ++round) {
    const auto rows = static_cast<std::size_t>(uniform(random, 1, 4));
    const auto columns = static_cast<std::uint32_t>(uniform(random, static_cast<int>(rows), 5));
    std::vector<std::int64_t> paired(rows * columns), alone(rows);
    for (std::int64_t& value : paired) value = uniform(random, 0, 12);
    for (std::int64_t& value : alone) value = uniform(random, 0, 12);
    const auto bottleneck = [&](const std::vector<std::uint32_t>& column_of) {
      std::int64_t worst = 0;
      for (std::size_t r = 0; r < rows; ++r) {
        worst = std::max(worst, std::min(alone[r], paired[r * columns + column_of[r]]));
      }
      return worst;
    };
    std::vector<std::uint32_t> any = as_they_come(columns);
    std::int64_t best = INT64_MAX;
    do best = std::min(best, bottleneck(any));
    while (std::next_permutation(any.begin(), any.end()));
    const std::vector<std::int32_t> found = bottleneck_match(paired, alone, columns);
    std::vector<std::uint32_t> columns_found(found.begin(), found.end());
    CHECK(bottleneck(columns_found) == best);
    std::sort(columns_found.begin(), columns_found.end());
    CHECK(std::adjacent_find(columns_found.begin(), columns_found.end()) == columns_found.end());
    CHECK(columns_found.back() < columns);
  }
}

void both_modules_are_balanced_together() {
  std::mt19937_64 random(15);
  const Grid grid{4, 2, 3000};
  Drawn drawn;
  std::vector<std::int64_t> encoder;
  for (int i = 0; i < 64; ++i) {
    drawn.tokens.push_back(uniform(random, 100, 500));
    drawn.cost.push_back(uniform(random, 1000, 9000));
    encoder.push_back(uniform(random, 0, 3) == 0 ? 0 : uniform(random, 1000, 12000));
  }
  std::array<double, 2> worst{};
  for (const std::uint32_t rounds : {0U, 40U}) {
    const std::vector<std::uint32_t> bins =
        balance_two(drawn.samples(), encoder, grid, rounds, 5000 * rounds);
    std::vector<std::int64_t> backbone(grid.bins()), other(grid.bins()), tokens(grid.bins());
    for (std::size_t i = 0; i < bins.size(); ++i) {
      CHECK(bins[i] < grid.bins());
      backbone[bins[i]] += drawn.cost[i];
      other[bins[i]] += encoder[i];
      tokens[bins[i]] += drawn.tokens[i];
    }
    CHECK(*std::max_element(tokens.begin(), tokens.end()) <= grid.token_cap);
    std::int64_t longest = 0, total = 0;
    for (const std::vector<std::int64_t>* loads : {&backbone, &other}) {
      longest = std::max(longest, *std::max_element(loads->begin(), loads->end()));
      total = std::max(total, std::accumulate(loads->begin(), loads->end(), std::int64_t{0}));
    }
    worst[rounds > 0] = static_cast<double>(longest * grid.bins()) / static_cast<double>(total) - 1;
  }
  CHECK(worst[1] < 0.02 && worst[1] < worst[0] / 4);
}

/// Where every exchange makes the largest load larger, the optimum is still found, mostly.
void two_modules_reach_the_optimum_of_small_cases() {
  std::mt19937_64 random(16);
  int reached = 0;
  for (int round = 0; round < 60; ++round) {
    Drawn drawn;
    std::vector<std::int64_t> encoder;
    for (int i = 0; i < 9; ++i) {
      drawn.tokens.push_back(uniform(random, 1, 20));
      drawn.cost.push_back(uniform(random, 1, 100));
      encoder.push_back(uniform(random, 0, 100));
    }
    const std::vector<std::uint32_t> bins =
        balance_two(drawn.samples(), encoder, {3, 1, 80}, 4, 60000);
    const auto longest = [&](const std::vector<std::uint32_t>& bin_of) {
      std::array<std::int64_t, 3> backbone{}, other{}, tokens{};
      for (std::size_t i = 0; i < 9; ++i) {
        backbone[bin_of[i]] += drawn.cost[i];
        other[bin_of[i]] += encoder[i];
        tokens[bin_of[i]] += drawn.tokens[i];
      }
      if (*std::max_element(tokens.begin(), tokens.end()) > 80) return INT64_MAX;
      return std::max(*std::max_element(backbone.begin(), backbone.end()),
                      *std::max_element(other.begin(), other.end()));
    };
    std::int64_t best = INT64_MAX;
    std::vector<std::uint32_t> any(9);
    for (int code = 0; code < 19683; ++code) {
      for (int i = 0, rest = code; i < 9; ++i, rest /= 3)
        any[static_cast<std::size_t>(i)] = static_cast<std::uint32_t>(rest % 3);
      best = std::min(best, longest(any));
    }
    CHECK(longest(bins) >= best);
    reached += longest(bins) == best;
  }
  CHECK(reached > 55);
}

/// Greedily, each bin gets one of the first two, and the last fits into neither.
void two_modules_fit_where_tokens_are_tight() {
  const Drawn drawn{{6, 4, 5, 5}, {10, 9, 5, 5}};
  const std::vector<std::int64_t> encoder(4, 1);
  const std::vector<std::uint32_t> bins = balance_two(drawn.samples(), encoder, {2, 1, 10}, 4, 100);
  CHECK(bins[0] == bins[1] && bins[2] == bins[3] && bins[0] + bins[2] == 1);
}

}  // namespace

int main() {
  two_modules_fit_where_tokens_are_tight();
  two_modules_reach_the_optimum_of_small_cases();
  both_modules_are_balanced_together();
  best_fit_takes_the_smallest_room_that_suffices();
  next_fit_closes_a_bin_at_either_cap();
  differencing_is_near_even_and_counts_are_equal_if_asked();
  the_nearest_subset_is_found();
  matching_is_the_least_bottleneck();
}
