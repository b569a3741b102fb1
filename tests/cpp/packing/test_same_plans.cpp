#include <algorithm>
#include <array>
#include <cstdio>
#include <numeric>
#include <string_view>

#include "check.hpp"
#include "packing/draw.hpp"
#include "packing/input.hpp"
#include "packing/order.hpp"
#include "packing/schedule.hpp"
#include "packing/search.hpp"
#include "packing/two_modules.hpp"

/// Plans that every compiler, standard library and instruction set must make: see "The same plan on
/// every rank" in docs/packing.md. A change of the schedulers changes these checksums; a change of
/// the platform must not.

using namespace flowtrain::packing;

namespace {

/// FNV-1a over 64-bit words.
class Checksum {
 public:
  template <class Values>
  void add(const Values& values) {
    for (const auto value : values) add_word(static_cast<std::uint64_t>(value));
  }
  void add_word(std::uint64_t word) {
    for (int shift = 0; shift < 64; shift += 8) {
      sum_ = (sum_ ^ (word >> shift & 255)) * 0x100000001b3;
    }
  }
  std::uint64_t value() const { return sum_; }

 private:
  std::uint64_t sum_ = 0xcbf29ce484222325;
};

void expect(std::string_view what, const Checksum& found, std::uint64_t golden) {
  if (found.value() == golden) return;
  std::fprintf(stderr, "%.*s: 0x%016llx, not 0x%016llx\n", static_cast<int>(what.size()),
               what.data(), static_cast<unsigned long long>(found.value()),
               static_cast<unsigned long long>(golden));
  CHECK(found.value() == golden);
}

enum class Load { kLong, kEqual, kAnyCost };
constexpr std::array kLoads{Load::kLong, Load::kEqual, Load::kAnyCost};

/// Costs as a cost model gives them, in doubles, scaled to integers; many equal ones, or a tail.
Drawn drawn_of(Load load, std::mt19937_64& random, std::size_t count) {
  std::vector<double> cost;
  Drawn drawn;
  for (std::size_t i = 0; i < count; ++i) {
    std::int64_t t = uniform(random, 100, 2000);
    if (load == Load::kLong && uniform(random, 0, 19) == 0) t += uniform(random, 0, 20000);
    if (load == Load::kEqual) t = 256 * uniform(random, 1, 6);
    const auto length = static_cast<double>(t);
    cost.push_back(load == Load::kAnyCost ? static_cast<double>(uniform(random, 1, 1000000)) / 7.0
                                          : length * (7.0e4 + length) / 3.0);
    drawn.tokens.push_back(t);
  }
  drawn.cost.resize(count);
  scale(cost, drawn.cost, "cost");
  return drawn;
}

std::int64_t cap_of(const Drawn& drawn, const Grid& grid, std::int64_t percent) {
  const std::int64_t all =
      std::accumulate(drawn.tokens.begin(), drawn.tokens.end(), std::int64_t{0});
  return std::max(all * percent / 100 / grid.bins(),
                  *std::max_element(drawn.tokens.begin(), drawn.tokens.end()));
}

void every_objective_has_one_plan() {
  struct Golden {
    const char* name;
    Objective objective;
    std::uint64_t checksum;
  };
  for (const auto& [name, objective, golden] :
       {Golden{"lockstep", Objective::kLockstep, 0x86e5e2faf8e8c3ce},
        Golden{"accumulate", Objective::kAccumulate, 0xb36b28a1ad964c01},
        Golden{"max-microbatch", Objective::kMaxMicrobatch, 0x79829c3f92ce8674},
        Golden{"pipeline", Objective::kPipeline, 0xa565f74121749b9d}}) {
    Checksum all;
    for (const Load load : kLoads) {
      std::mt19937_64 random(7);
      for (const std::int64_t percent : {125, 102}) {
        Grid grid{8, 4, 0, 4};
        const Drawn drawn = drawn_of(load, random, 300);
        grid.max_tokens = cap_of(drawn, grid, percent);
        for (const bool place_all : {true, false}) {
          const Schedule plan = schedule(drawn.samples(), grid, objective, true, place_all);
          all.add(plan.slot);
          all.add(plan.rank);
          all.add_word(static_cast<std::uint64_t>(plan.bound));
        }
      }
    }
    expect(name, all, golden);
  }
}

void every_other_kernel_has_one_result() {
  std::mt19937_64 random(8);
  Checksum two, others;
  for (const Load load : kLoads) {
    const Drawn drawn = drawn_of(load, random, 120), encoder = drawn_of(load, random, 120);
    Grid grid{16, 1, 0};
    grid.max_tokens = cap_of(drawn, grid, 130);
    two.add(balance_two(drawn.samples(), encoder.cost, grid, 4, 100000));
    const auto order = order_by_cost(drawn.samples());
    others.add(order_by_density(drawn.samples(), order));
    others.add(best_fit(drawn.tokens, order, grid.max_tokens));
    others.add(search_bins(drawn.tokens, 16, grid.max_tokens).bin_of);
  }
  expect("two modules", two, 0xbf8627bd2ca76c8b);
  expect("others", others, 0xef5b834b896fc986);
}

}  // namespace

int main() {
  every_objective_has_one_plan();
  every_other_kernel_has_one_result();
}
