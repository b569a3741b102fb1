#include "packing/bound.hpp"

#include <algorithm>
#include <numeric>
#include <vector>

#include "base/math.hpp"
#include "packing/crowd.hpp"
#include "packing/order.hpp"

namespace flowtrain::packing {
std::int64_t makespan_bound(const Samples& samples, std::span<const std::uint32_t> order,
                            std::uint32_t bins) {
  return find_crowd(samples, order, bins).bound;
}

namespace {

__extension__ using Wide = __int128;

/// Whether the ranks of a pipeline could do all work by `end`, as far as `pipeline_bound` can tell.
bool could_end_by(std::int64_t end, std::int64_t total, const Samples& samples,
                  std::span<const std::uint32_t> order, const Grid& grid) {
  const std::int64_t others = grid.stages - 1;
  const auto even = static_cast<std::int64_t>(Wide{end} * grid.slots / (grid.slots + others));
  Wide done = 0, held = 0;
  std::size_t next = 0;  // The largest sample that the ranks so far cannot hold.
  for (std::uint32_t rank = 0; rank < grid.ranks; ++rank) {
    const std::int64_t heaviest = next < order.size() ? samples.cost[order[next]] : 0;
    const Wide most = std::min<Wide>(even, end - Wide{others} * heaviest);
    if (most < heaviest) return false;
    done += most;
    if (done >= total) return true;
    while (next < order.size() && held + samples.cost[order[next]] <= done) {
      held += samples.cost[order[next++]];
    }
  }
  return false;
}

}  // namespace

std::int64_t pipeline_bound(const Samples& samples, std::span<const std::uint32_t> order,
                            const Grid& grid) {
  if (order.empty()) return 0;
  const std::int64_t total =
      std::accumulate(samples.cost.begin(), samples.cost.end(), std::int64_t{0});
  const std::int64_t stages = grid.stages;
  std::int64_t low = std::max(makespan_bound(samples, order, grid.ranks),
                              stages * makespan_bound(samples, order, grid.bins()));
  std::int64_t high = total * stages;  // All of it in one bin.
  while (low < high) {
    const std::int64_t middle = low + (high - low) / 2;
    if (could_end_by(middle, total, samples, order, grid)) {
      high = middle;
    } else {
      low = middle + 1;
    }
  }
  return low;
}

}  // namespace flowtrain::packing
