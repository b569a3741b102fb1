#include <algorithm>

#include "packing/bound.hpp"
#include "packing/layout.hpp"
#include "packing/objectives.hpp"
#include "packing/place.hpp"
#include "packing/search.hpp"

namespace flowtrain::packing {

Schedule max_microbatch(const Step& step) {
  const auto& [samples, order, grid, refined, place_all] = step;
  Schedule out(samples.size());
  out.bound = max_bin_bound(samples, order, grid.bins());
  const std::int64_t mean = sum(samples.cost) / grid.bins();
  const std::vector<std::int64_t> targets(grid.bins(), mean);
  Bins bins(samples, grid.bins());
  out.unplaced = place(bins, order, targets, grid.max_tokens);
  if (out.unplaced > 0 && place_all && pack_by_tokens(bins, grid.max_tokens, true))
    out.unplaced = 0;
  if (refined) {
    refine(bins, targets, 0, grid.max_tokens,
           {.passes = 64,
            .work = 32768 + 40 * samples.size(),
            .patience = 6,
            .tolerance = std::max(mean / 4096, out.bound - mean)});  // Nothing is gained below it.
  }
  lay_out(out, bins, grid.ranks);
  out.value = *std::max_element(bins.loads().begin(), bins.loads().end());
  return out;
}

}  // namespace flowtrain::packing
