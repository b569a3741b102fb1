#include <algorithm>
#include <array>
#include <bit>

#include "base/error.hpp"
#include "check.hpp"
#include "packing/draw.hpp"
#include "packing/input.hpp"
#include "packing/schedule.hpp"

using namespace flowtrain::packing;

namespace {

struct Sums {
  std::vector<std::int64_t> load, tokens;
};

/// What lies in each bin of a schedule; bin is slot * ranks + rank.
Sums sums_of(const Samples& samples, const Grid& grid, const Schedule& schedule) {
  Sums sums{std::vector<std::int64_t>(grid.bins()), std::vector<std::int64_t>(grid.bins())};
  for (std::size_t i = 0; i < samples.size(); ++i) {
    if (schedule.slot[i] < 0) continue;
    CHECK(schedule.slot[i] < static_cast<std::int32_t>(grid.slots));
    CHECK(schedule.rank[i] >= 0 && schedule.rank[i] < static_cast<std::int32_t>(grid.ranks));
    const auto bin = static_cast<std::size_t>(schedule.slot[i]) * grid.ranks +
                     static_cast<std::size_t>(schedule.rank[i]);
    sums.load[bin] += samples.cost[i];
    sums.tokens[bin] += samples.tokens[i];
  }
  return sums;
}

std::int64_t value_of(const std::vector<std::int64_t>& load, const Grid& grid,
                      Objective objective) {
  if (objective == Objective::kMaxMicrobatch) return *std::max_element(load.begin(), load.end());
  std::int64_t lockstep = 0;
  std::vector<std::int64_t> ranks(grid.ranks), heaviest(grid.ranks);
  for (std::uint32_t m = 0; m < grid.slots; ++m) {
    std::int64_t slowest = 0;
    for (std::uint32_t r = 0; r < grid.ranks; ++r) {
      slowest = std::max(slowest, load[m * grid.ranks + r]);
      ranks[r] += load[m * grid.ranks + r];
      heaviest[r] = std::max(heaviest[r], load[m * grid.ranks + r]);
    }
    lockstep += slowest;
  }
  if (objective == Objective::kLockstep) return lockstep;
  if (objective == Objective::kPipeline) {
    for (std::uint32_t r = 0; r < grid.ranks; ++r) ranks[r] += (grid.stages - 1) * heaviest[r];
  }
  return *std::max_element(ranks.begin(), ranks.end());
}

constexpr std::array kObjectives{Objective::kLockstep, Objective::kAccumulate,
                                 Objective::kMaxMicrobatch, Objective::kPipeline};
using Values = std::array<std::int64_t, kObjectives.size()>;

/// Least value over all assignments that keep to the cap, per objective; -1 where there is none.
Values brute_force(const Samples& samples, const Grid& grid) {
  Values best{-1, -1, -1, -1};
  std::vector<std::uint32_t> bin(samples.size());
  for (;;) {
    std::vector<std::int64_t> load(grid.bins()), tokens(grid.bins());
    for (std::size_t i = 0; i < bin.size(); ++i) {
      load[bin[i]] += samples.cost[i];
      tokens[bin[i]] += samples.tokens[i];
    }
    if (*std::max_element(tokens.begin(), tokens.end()) <= grid.max_tokens) {
      for (std::size_t o = 0; o < kObjectives.size(); ++o) {
        const std::int64_t value = value_of(load, grid, kObjectives[o]);
        if (best[o] < 0 || value < best[o]) best[o] = value;
      }
    }
    std::size_t i = 0;
    while (i < bin.size() && ++bin[i] == grid.bins()) bin[i++] = 0;
    if (i == bin.size()) return best;
  }
}

void bounds_are_never_above_brute_force() {
  std::mt19937_64 random(1);
  int feasible = 0, binding = 0;
  for (int round = 0; round < 1200; ++round) {
    const Grid grid{static_cast<std::uint32_t>(uniform(random, 1, 3)),
                    static_cast<std::uint32_t>(uniform(random, 1, 2)), uniform(random, 8, 30),
                    static_cast<std::uint32_t>(uniform(random, 1, 4))};
    const std::size_t count = grid.bins() > 4 ? 5 : 6;
    const Drawn drawn = draw(random, count, std::min<std::int64_t>(grid.max_tokens, 14), 40);
    const Values best = brute_force(drawn.samples(), grid);
    for (std::size_t o = 0; o < kObjectives.size(); ++o) {
      const Schedule found = schedule(drawn.samples(), grid, kObjectives[o], true);
      if (best[o] < 0) {
        CHECK(found.unplaced > 0);
        continue;
      }
      ++feasible;
      binding += found.bound == best[o];
      CHECK(found.bound <= best[o]);
      CHECK(bound(drawn.samples(), grid, kObjectives[o]) <= best[o]);
      if (found.unplaced > 0) continue;
      const Sums sums = sums_of(drawn.samples(), grid, found);
      CHECK(*std::max_element(sums.tokens.begin(), sums.tokens.end()) <= grid.max_tokens);
      CHECK(found.value == value_of(sums.load, grid, kObjectives[o]));
      CHECK(found.value >= best[o]);
    }
  }
  // Neither is the test empty nor the bound: it often is the optimum.
  CHECK(feasible > 2000 && binding > feasible / 3);
}

/// Lognormal-like lengths of a step, and costs with a quadratic part.
Drawn step(std::mt19937_64& random, std::size_t count, std::int64_t tail) {
  Drawn drawn;
  for (std::size_t i = 0; i < count; ++i) {
    const std::int64_t base = uniform(random, 100, 2000);
    const std::int64_t t = uniform(random, 0, 19) == 0 ? base + uniform(random, 0, tail) : base;
    drawn.tokens.push_back(t);
    drawn.cost.push_back(70000 * t + t * t);
  }
  return drawn;
}

void schedules_come_near_their_bounds() {
  std::mt19937_64 random(2);
  for (const std::int64_t tail : {1000, 20000}) {
    for (const Grid shape : {Grid{8, 4, 0}, Grid{16, 8, 0}, Grid{32, 4, 0}}) {
      const Drawn drawn = step(random, std::size_t{8} * shape.bins(), tail);
      std::int64_t tokens = 0;
      for (const std::int64_t t : drawn.tokens) tokens += t;
      const std::int64_t cap =
          std::max(tokens / shape.bins() * 5 / 4,
                   *std::max_element(drawn.tokens.begin(), drawn.tokens.end()));
      const Grid grid{shape.ranks, shape.slots, cap, 4};
      for (const Objective objective : kObjectives) {
        const Schedule found = schedule(drawn.samples(), grid, objective, true);
        CHECK(found.unplaced == 0);
        const Sums sums = sums_of(drawn.samples(), grid, found);
        CHECK(*std::max_element(sums.tokens.begin(), sums.tokens.end()) <= cap);
        CHECK(found.value == value_of(sums.load, grid, objective));
        const double gap = static_cast<double>(found.value) / static_cast<double>(found.bound) - 1;
        const double most = objective == Objective::kAccumulate ? 1e-4
                            : objective == Objective::kPipeline ? 2.5e-2
                                                                : 1e-2;
        CHECK(gap >= 0 && gap < most);
        const Schedule rough = schedule(drawn.samples(), grid, objective, false);
        CHECK(found.value <= rough.value);
      }
    }
  }
}

/// A long slot holds several samples of middling size on each rank, so that the next is short.
void a_long_slot_holds_what_fits() {
  Drawn drawn{{100}, {100}};
  for (int i = 0; i < 12; ++i) drawn.tokens.push_back(25), drawn.cost.push_back(25);
  for (int i = 0; i < 20; ++i) drawn.tokens.push_back(1), drawn.cost.push_back(1);
  const Schedule found = schedule(drawn.samples(), {4, 2, 100}, Objective::kLockstep, false);
  CHECK(found.bound == 105 && found.value == 105);
}

/// Costliest first, the other bins of the long slot would be full of what costs 3 a token.
void a_long_slot_is_filled_with_the_densest() {
  Drawn drawn{{100}, {1000}};
  for (int i = 0; i < 30; ++i) drawn.tokens.push_back(10), drawn.cost.push_back(100);
  for (int i = 0; i < 24; ++i) drawn.tokens.push_back(40), drawn.cost.push_back(120);
  const Schedule found = schedule(drawn.samples(), {4, 4, 100}, Objective::kLockstep, true);
  CHECK(found.unplaced == 0 && found.bound == 1720 && found.value == 1720);
}

/// A bin of the long slot holds no more than it lasts, nor two samples above half the cap: by
/// tokens alone, the other slots would have less to do.
void a_bound_knows_what_a_bin_holds() {
  Drawn clipped{{8}, {100}};
  for (int i = 0; i < 6; ++i) clipped.tokens.push_back(5), clipped.cost.push_back(30);
  const Schedule found = schedule(clipped.samples(), {2, 2, 10}, Objective::kLockstep, true);
  CHECK(found.bound == 160 && found.value == 160);
  Drawn halves{{8}, {100}};
  for (int i = 0; i < 5; ++i) halves.tokens.push_back(6), halves.cost.push_back(36);
  for (int i = 0; i < 20; ++i) halves.tokens.push_back(1), halves.cost.push_back(1);
  const Schedule apart = schedule(halves.samples(), {2, 3, 10}, Objective::kLockstep, true);
  CHECK(apart.bound == 180 && apart.value == 180);
}

/// Where every bin holds one sample, the bound is exact however many slots there are.
void a_bound_needs_not_every_number_of_long_slots() {
  for (const std::uint32_t slots : {63, 64, 65, 129, 1000}) {
    const Grid grid{4, slots, 10};
    Drawn drawn;
    std::int64_t sum = 0;
    for (std::int64_t i = 0; i < grid.bins(); ++i) {
      drawn.tokens.push_back(6);
      drawn.cost.push_back(100 + i * i);
      if (i % 4 == 3) sum += drawn.cost.back();
    }
    CHECK(schedule(drawn.samples(), grid, Objective::kLockstep, true).bound == sum);
  }
}

/// Two of three bins must hold three samples each: one such bin alone may hold the smallest, 16.
void a_bound_knows_how_many_bins_hold_one_more() {
  const Drawn drawn{std::vector<std::int64_t>(8, 1), {7, 7, 7, 6, 6, 5, 5, 5}};
  const Schedule found = schedule(drawn.samples(), {3, 1, 3}, Objective::kMaxMicrobatch, true);
  CHECK(found.bound == 17 && found.value == 17);
}

/// Two long samples of middling size share no bin, though neither is above half the cap.
void a_bound_knows_what_shares_no_bin() {
  std::mt19937_64 random(3);
  for (int round = 0; round < 3; ++round) {
    Drawn drawn;
    for (int i = 0; i < 256; ++i) {
      const bool is_long = uniform(random, 0, 9) == 0;
      const std::int64_t t = is_long ? uniform(random, 8000, 32000) : uniform(random, 100, 2000);
      drawn.tokens.push_back(t);
      drawn.cost.push_back(70000 * t + t * t);
    }
    // The mean is less.
    const std::int64_t cap = *std::max_element(drawn.tokens.begin(), drawn.tokens.end());
    const Schedule found = schedule(drawn.samples(), {8, 4, cap}, Objective::kLockstep, true);
    CHECK(found.value - found.bound < found.bound / 300);
  }
}

/// A unit does not change a schedule, even where the cost of all ranks exceeds 63 bits.
void costs_up_to_the_limit_do_not_wrap() {
  std::mt19937_64 random(4);
  for (int round = 0; round < 100; ++round) {
    const auto ranks = static_cast<std::uint32_t>(uniform(random, 2, 40));
    Drawn drawn;
    std::int64_t tokens = 0, cost = 0;
    for (std::int64_t i = uniform(random, 20, 60); i > 0; --i) {
      drawn.tokens.push_back(uniform(random, 1, 50));
      drawn.cost.push_back(i > 1 ? uniform(random, 1, 1000) : 20000);
      tokens += drawn.tokens.back();
      cost += drawn.cost.back();
    }
    const Grid grid{ranks, 2, std::max<std::int64_t>(50, tokens * 13 / 20 / ranks), 3};
    const int most = 61 - std::bit_width(static_cast<std::uint64_t>(3 * cost));
    Drawn small = drawn, large = drawn;
    for (std::int64_t& c : small.cost) c <<= 12;
    for (std::int64_t& c : large.cost) c <<= most;
    for (const Objective objective : kObjectives) {
      const Schedule plan = schedule(small.samples(), grid, objective, true);
      const Schedule same = schedule(large.samples(), grid, objective, true);
      CHECK(same.unplaced == plan.unplaced);
      CHECK(same.value >> most == plan.value >> 12 && same.bound >> most == plan.bound >> 12);
    }
  }
}

/// Tokens that fill 98.5 % of the bins, and bins of few tokens.
void ranks_are_even_where_tokens_are_tight() {
  std::mt19937_64 random(5);
  for (int round = 0; round < 5; ++round) {
    const Drawn full = step(random, 256, 4000);
    std::int64_t tokens = 0;
    for (const std::int64_t t : full.tokens) tokens += t;
    const Grid grid{8, 4, tokens * 1000 / 985 / 32};
    const Schedule found = schedule(full.samples(), grid, Objective::kAccumulate, true);
    CHECK(found.unplaced == 0);
    CHECK(found.value - found.bound <= found.bound / 10000);
    Drawn few;
    for (int i = 0; i < 64; ++i) few.tokens.push_back(uniform(random, 1, 8));
    for (int i = 0; i < 64; ++i) few.cost.push_back(uniform(random, 1, 1000));
    const Schedule small = schedule(few.samples(), {16, 1, 24}, Objective::kAccumulate, true);
    CHECK(small.unplaced == 0);
    CHECK(small.value - small.bound <= small.bound / 100);
  }
}

/// Of few samples, ranks that are nearly full of tokens rarely fit into their slots.
void few_and_long_samples_are_scheduled_in_another_way() {
  const Drawn five{{40, 45, 30, 35, 20}, {40, 90, 30, 10, 30}};
  const Schedule pipeline = schedule(five.samples(), {2, 3, 45, 2}, Objective::kPipeline, true);
  CHECK(pipeline.unplaced == 0 && pipeline.value == 190);  // By brute force.
  const Drawn others{{20, 25, 15, 50, 10}, {20, 60, 90, 60, 10}};
  const Schedule rough = schedule(others.samples(), {2, 1, 75}, Objective::kAccumulate, false);
  CHECK(rough.unplaced == 0 && rough.value == rough.bound);
}

/// Both bins are full, and the lighter still exchanges samples with the heavier.
void full_bins_are_evened_out() {
  const Drawn drawn{{1, 2, 3, 3, 3}, {8, 8, 9, 2, 9}};
  const Schedule found = schedule(drawn.samples(), {2, 1, 6}, Objective::kMaxMicrobatch, true);
  CHECK(found.unplaced == 0 && found.value == 18 && found.bound == 18);
}

void kernels_get_no_negative_cost() {
  const Drawn drawn{{1, 1}, {-5, 9}};
  CHECK_THROWS(check(drawn.samples(), {1, 1, 10}), flowtrain::BadArgument);
}

void batches_at_the_edge_are_scheduled() {
  const Grid grid{4, 2, 100};
  const Drawn none;
  for (const Objective objective : kObjectives) {
    CHECK(schedule(none.samples(), grid, objective, true).value == 0);
    const Drawn one{{100}, {7}};
    const Drawn no_tokens{{0, 0, 0}, {9, 1, 1}};
    CHECK(schedule(no_tokens.samples(), {2, 2, 100}, objective, true).value == 9);
    const Schedule alone = schedule(one.samples(), grid, objective, true);
    CHECK(alone.unplaced == 0 && alone.value == 7 && alone.bound == 7);
    const Drawn free_of_cost{{50, 50, 50}, {0, 0, 0}};
    CHECK(schedule(free_of_cost.samples(), grid, objective, true).value == 0);
    // Sixteen halves of the cap fit only if each bin gets two.
    const Drawn exact{std::vector<std::int64_t>(16, 50), std::vector<std::int64_t>(16, 3)};
    CHECK(schedule(exact.samples(), grid, objective, true).unplaced == 0);
    const Drawn too_much{std::vector<std::int64_t>(17, 50), std::vector<std::int64_t>(17, 3)};
    CHECK(schedule(too_much.samples(), grid, objective, true).unplaced == 1);
  }
}

}  // namespace

int main() {
  bounds_are_never_above_brute_force();
  schedules_come_near_their_bounds();
  a_long_slot_holds_what_fits();
  a_long_slot_is_filled_with_the_densest();
  a_bound_knows_what_a_bin_holds();
  a_bound_needs_not_every_number_of_long_slots();
  a_bound_knows_how_many_bins_hold_one_more();
  a_bound_knows_what_shares_no_bin();
  costs_up_to_the_limit_do_not_wrap();
  ranks_are_even_where_tokens_are_tight();
  few_and_long_samples_are_scheduled_in_another_way();
  full_bins_are_evened_out();
  kernels_get_no_negative_cost();
  batches_at_the_edge_are_scheduled();
}
