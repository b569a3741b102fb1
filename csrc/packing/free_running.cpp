#include <algorithm>
#include <utility>

#include "packing/bound.hpp"
#include "packing/objectives.hpp"
#include "packing/order.hpp"
#include "packing/place.hpp"
#include "packing/share.hpp"

namespace flowtrain::packing {
namespace {

std::vector<std::int64_t> rank_loads(const Schedule& out, const Step& step) {
  std::vector<std::int64_t> loads(step.grid.ranks);
  for (std::size_t i = 0; i < out.rank.size(); ++i) {
    if (out.rank[i] >= 0) loads[static_cast<std::size_t>(out.rank[i])] += step.samples.cost[i];
  }
  return loads;
}

/// Evens out the ranks of a schedule whose tokens leave no room to balance ranks first: heavy ranks
/// and light ones share pairs of microbatches anew, all of which stay under the cap.
void even_out_ranks(Schedule& out, const Step& step, std::int64_t enough, const Effort& effort) {
  const Grid& grid = step.grid;
  Bins bins(step.samples, grid.bins());
  for (std::uint32_t i = 0; i < out.rank.size(); ++i) {
    if (out.rank[i] < 0) continue;
    bins.add(i, static_cast<std::uint32_t>(out.slot[i]) * grid.ranks +
                    static_cast<std::uint32_t>(out.rank[i]));
  }
  std::vector<std::int64_t> loads = rank_loads(out, step);
  Sharer sharer(bins, grid.token_cap);
  const std::size_t half = grid.ranks / 2;
  std::uint64_t work = 0;
  for (std::uint32_t pass = 0; pass < effort.passes; ++pass) {
    const std::vector<std::uint32_t> sorted = order_descending(loads);
    for (std::size_t i = 0; i < half; ++i) {
      // Another partner and other pairs of microbatches in every pass.
      const std::uint32_t high = sorted[i], low = sorted[sorted.size() - 1 - (i + pass) % half];
      for (std::uint32_t slot = 0; slot < grid.slots && work < effort.work; ++slot) {
        const std::int64_t apart = loads[high] - loads[low];
        if (loads[high] <= enough || apart <= effort.tolerance) break;
        const std::uint32_t a = slot * grid.ranks + high;
        const std::uint32_t b = (slot + pass) % grid.slots * grid.ranks + low;
        const std::int64_t before = bins.load(a);
        work += sharer.share(a, b, {before - apart / 2, 14, pass, effort.tolerance / 4}).sums;
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

std::int64_t heaviest_rank(const Schedule& out, const Step& step) {
  const std::vector<std::int64_t> loads = rank_loads(out, step);
  return *std::max_element(loads.begin(), loads.end());
}

}  // namespace

Schedule free_running(const Step& step) {
  const auto& [samples, order, grid, refined, closed] = step;
  Schedule out(samples.size());
  out.bound = makespan_bound(samples, order, grid.ranks);
  const std::int64_t mean = sum(samples.cost) / grid.ranks;
  const std::vector<std::int64_t> targets(grid.ranks, mean);
  const std::int64_t rank_cap = rank_room(grid);
  Bins bins(samples, grid.ranks);
  bool fits = place(bins, order, targets, rank_cap) == 0;
  Effort effort{.passes = 64,
                .work = 131072 + 24 * samples.size(),
                .patience = 24,
                .tolerance = mean / 65536,
                .alike = alike(samples, order, bins.count())};
  if (fits && refined) refine(bins, targets, 0, rank_cap, effort);
  const std::vector<std::vector<std::uint32_t>> mine = by_rank(order, bins);
  for (std::uint32_t r = 0; r < grid.ranks && fits; ++r) {
    // Its slots need not be even.
    fits = lay_out_rank(out, samples, mine[r], r, grid, {});
  }
  if (fits) out.value = heaviest_rank(out, step);
  if (!fits || out.value - out.bound > out.bound / kFarPart) {
    // Tokens are too tight to balance ranks first: microbatches first, then.
    Schedule other = lockstep(step);
    other.bound = out.bound;
    if (refined) even_out_ranks(other, step, out.bound, effort);
    other.value = heaviest_rank(other, step);
    if (!fits || (other.unplaced == 0 && other.value < out.value)) out = std::move(other);
  }
  return out;
}

}  // namespace flowtrain::packing
