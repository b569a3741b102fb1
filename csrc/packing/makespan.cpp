#include <algorithm>

#include "packing/align.hpp"
#include "packing/bound.hpp"
#include "packing/objectives.hpp"

namespace flowtrain::packing {

Schedule makespan(const Step& step) {
  const auto& [samples, order, grid, refined, closed] = step;
  Schedule out(samples.size());
  out.bound = makespan_bound(samples, order, grid.bins());
  const std::int64_t mean = sum(samples.cost) / grid.bins();
  const std::vector<std::int64_t> targets(grid.bins(), mean);
  Bins bins = fill(samples, order, targets, grid.token_cap, closed, &out.unplaced);
  if (refined) {
    refine(bins, targets, 0, grid.token_cap,
           {.passes = 64,
            .work = 32768 + 40 * samples.size(),
            .patience = 6,
            // Nothing is gained below the bound.
            .tolerance = std::max(mean / 4096, out.bound - mean),
            .alike = alike(samples, order, bins.count())});
  }
  const std::vector<std::uint32_t> aligned = align(bins.loads());
  lay_out(out, bins, aligned, grid.ranks);
  out.value = bins.load(aligned.front());
  return out;
}

}  // namespace flowtrain::packing
