#include <algorithm>

#include "packing/bound.hpp"
#include "packing/objectives.hpp"
#include "packing/place.hpp"

namespace flowtrain::packing {

Schedule free_running(const Step& step) {
  const auto& [samples, order, grid, refined, closed] = step;
  Schedule out(samples.size());
  out.bound = makespan_bound(samples, order, grid.ranks);
  const std::int64_t mean = sum(samples.cost) / grid.ranks;
  const std::vector<std::int64_t> targets(grid.ranks, mean);
  // Packed into slots, a rank's tokens lose a little room to their lengths.
  const std::int64_t rank_cap = grid.token_cap * grid.slots / 50 * 49;
  Bins bins(samples, grid.ranks);
  bool fits = place(bins, order, targets, rank_cap) == 0;
  if (fits && refined) {
    refine(bins, targets, 0, rank_cap,
           {.passes = 64,
            .work = 131072 + 24 * samples.size(),
            .patience = 24,
            .tolerance = mean / 65536,
            .alike = alike(samples, order, bins.count())});
  }
  const std::vector<std::vector<std::uint32_t>> mine = by_rank(order, bins);
  for (std::uint32_t r = 0; r < grid.ranks && fits; ++r) {
    // Its slots need not be even.
    fits = lay_out_rank(out, samples, mine[r], r, grid, {});
  }
  if (!fits) {
    // Tokens are too tight for ranks first: microbatches first, then.
    const std::int64_t bound = out.bound;
    out = lockstep(step);
    out.bound = bound;
  }
  std::vector<std::int64_t> sums(grid.ranks);
  for (std::size_t i = 0; i < samples.size(); ++i) {
    if (out.rank[i] >= 0) sums[static_cast<std::size_t>(out.rank[i])] += samples.cost[i];
  }
  out.value = *std::max_element(sums.begin(), sums.end());
  return out;
}

}  // namespace flowtrain::packing
