#include <algorithm>
#include <utility>

#include "packing/bound.hpp"
#include "packing/layout.hpp"
#include "packing/objectives.hpp"
#include "packing/order.hpp"
#include "packing/place.hpp"
#include "packing/repartition.hpp"
#include "packing/search.hpp"

namespace flowtrain::packing {
namespace {

/// Work that a rank may have if it is to end by `end` with a microbatch of `heaviest`.
std::int64_t max_work(std::int64_t end, std::int64_t heaviest, const Grid& grid) {
  const std::int64_t others = grid.stages - 1;
  const auto even = static_cast<std::int64_t>(Wide{end} * grid.slots / (grid.slots + others));
  return std::min(even, end - others * heaviest);
}

/// Packs the samples of one rank, which come by descending cost, into its slots. Those of a
/// pipeline are evened out.
bool pack_rank(const Step& step, std::span<const std::uint32_t> mine, std::uint32_t rank,
               Schedule& out) {
  const Grid& grid = step.grid;
  std::vector<std::int64_t> tokens, cost;
  for (const std::uint32_t i : mine) {
    tokens.push_back(step.samples.tokens[i]);
    cost.push_back(step.samples.cost[i]);
  }
  const Samples own{tokens, cost};
  std::vector<std::uint32_t> order(mine.size());
  std::iota(order.begin(), order.end(), 0U);
  const std::int64_t mean = sum(cost) / grid.slots;
  const std::vector<std::int64_t> targets(grid.slots, mean);
  Bins bins(own, grid.slots);
  if (place(bins, order, targets, grid.max_tokens) > 0 &&
      !pack_by_tokens(bins, grid.max_tokens, false)) {
    return false;
  }
  if (step.refined && grid.stages > 1 && !cost.empty()) {
    refine(bins, targets, 0, grid.max_tokens,
           {.passes = 16,
            .work = 1024 + 16 * mine.size(),
            .patience = 3,
            .tolerance = std::max(mean / 4096, cost.front() - mean)});
  }
  for (std::size_t k = 0; k < mine.size(); ++k) {
    out.slot[mine[k]] = static_cast<std::int32_t>(bins.bin_of()[k]);
    out.rank[mine[k]] = static_cast<std::int32_t>(rank);
  }
  return true;
}

std::vector<std::int64_t> rank_loads(const Schedule& out, const Step& step) {
  std::vector<std::int64_t> loads(step.grid.ranks);
  for (std::size_t i = 0; i < out.rank.size(); ++i) {
    if (out.rank[i] >= 0) loads[static_cast<std::size_t>(out.rank[i])] += step.samples.cost[i];
  }
  return loads;
}

std::int64_t heaviest_rank(const Schedule& out, const Step& step) {
  return std::ranges::max(rank_loads(out, step));
}

/// Evens out the ranks of a schedule whose tokens leave no room to balance ranks first: pairs of
/// microbatches of heavy and light ranks divide their samples anew, and stay under the cap.
void even_out_ranks(Schedule& out, const Step& step, std::int64_t enough, const Effort& effort) {
  const Grid& grid = step.grid;
  Bins bins(step.samples, grid.bins());
  for (std::uint32_t i = 0; i < out.rank.size(); ++i) {
    if (out.rank[i] < 0) continue;
    bins.add(i, static_cast<std::uint32_t>(out.slot[i]) * grid.ranks +
                    static_cast<std::uint32_t>(out.rank[i]));
  }
  std::vector<std::int64_t> loads = rank_loads(out, step);
  Repartitioner repartitioner(bins, grid.max_tokens);
  const std::size_t half = grid.ranks / 2;
  std::uint64_t work = 0;
  for (std::uint32_t pass = 0; pass < effort.passes; ++pass) {
    const Vector<std::uint32_t> sorted = order_descending(loads);
    for (std::size_t i = 0; i < half; ++i) {
      // Another partner and other pairs of microbatches in every pass.
      const std::uint32_t high = sorted[i], low = sorted[sorted.size() - 1 - (i + pass) % half];
      for (std::uint32_t slot = 0; slot < grid.slots && work < effort.work; ++slot) {
        const std::int64_t apart = loads[high] - loads[low];
        if (loads[high] <= enough || apart <= effort.tolerance) break;
        const std::uint32_t a = slot * grid.ranks + high;
        const std::uint32_t b = (slot + pass) % grid.slots * grid.ranks + low;
        const std::int64_t before = bins.load(a);
        work += repartitioner
                    .divide(a, b,
                            {.target = before - apart / 2,
                             .movable = 14,
                             .offset = pass,
                             .tolerance = effort.tolerance / 4})
                    .sums;
        loads[high] += bins.load(a) - before;
        loads[low] -= bins.load(a) - before;
      }
    }
  }
  for (std::size_t i = 0; i < out.rank.size(); ++i) {
    if (out.rank[i] < 0) continue;
    out.slot[i] = static_cast<std::int32_t>(bins.bin_of()[i] / grid.ranks);
    out.rank[i] = static_cast<std::int32_t>(bins.bin_of()[i] % grid.ranks);
  }
}

}  // namespace

std::int64_t rank_room(const Grid& grid) {
  return static_cast<std::int64_t>(
      std::min<Wide>(kMaxSum, Wide{grid.max_tokens} * grid.slots * 49 / 50));
}

bool balance_ranks(const Step& step, std::int64_t end, std::int64_t rank_cap, const Effort& effort,
                   Schedule& out) {
  const auto& [samples, order, grid, refined, place_all] = step;
  const std::int64_t even = end / (grid.slots + grid.stages - 1);
  Bins bins(samples, grid.ranks);
  std::vector<std::int64_t> targets(grid.ranks, max_work(end, even, grid));
  std::uint32_t rank = 0, slots = 0;
  std::size_t heavy = 0;
  for (; grid.stages > 1 && heavy < order.size() && samples.cost[order[heavy]] > even; ++heavy) {
    const std::uint32_t i = order[heavy];
    if (slots > 0 && (slots == grid.slots || bins.load(rank) + samples.cost[i] > targets[rank] ||
                      bins.tokens(rank) + samples.tokens[i] > rank_cap)) {
      ++rank;
      slots = 0;
    }
    if (rank == grid.ranks || samples.tokens[i] > rank_cap) return false;
    if (slots++ == 0) targets[rank] = max_work(end, samples.cost[i], grid);
    bins.add(i, rank);
  }
  const std::uint32_t gathered = slots > 0 ? rank + 1 : rank;
  // Targets may sum to more than the total cost: lower all of them equally.
  const Wide capacity = std::accumulate(targets.begin(), targets.end(), Wide{0});
  const auto spare = static_cast<std::int64_t>((capacity - sum(samples.cost)) / grid.ranks);
  for (std::int64_t& target : targets) target -= spare;
  if (place(bins, order.subspan(heavy), targets, rank_cap) > 0) return false;
  if (refined) refine(bins, targets, gathered, rank_cap, effort);
  std::vector<std::vector<std::uint32_t>> mine(grid.ranks);
  for (const std::uint32_t i : order) mine[bins.bin_of()[i]].push_back(i);
  for (std::uint32_t r = 0; r < grid.ranks; ++r) {
    if (!pack_rank(step, mine[r], r, out)) return false;
  }
  return true;
}

Schedule accumulate(const Step& step) {
  const auto& [samples, order, grid, refined, place_all] = step;
  Schedule out(samples.size());
  out.bound = max_bin_bound(samples, order, grid.ranks);
  const Effort effort{.passes = 64,
                      .work = 131072 + 24 * samples.size(),
                      .patience = 24,
                      .tolerance = sum(samples.cost) / grid.ranks / 65536};
  const bool fits = balance_ranks(step, out.bound, rank_room(grid), effort, out);
  if (fits) out.value = heaviest_rank(out, step);
  if (!fits || out.value - out.bound > out.bound / kFarDivisor) {
    // Balancing ranks first failed or is far from the bound: balance microbatches first.
    Schedule other = lockstep(step);
    other.bound = out.bound;
    if (refined) even_out_ranks(other, step, out.bound, effort);
    other.value = heaviest_rank(other, step);
    if (!fits || (other.unplaced == 0 && other.value < out.value)) out = std::move(other);
  }
  return out;
}

}  // namespace flowtrain::packing
