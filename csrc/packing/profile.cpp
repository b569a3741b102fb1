#include "packing/profile.hpp"

#include <algorithm>
#include <numeric>

namespace flowtrain::packing {

std::vector<std::int64_t> slot_targets(const Samples& samples, std::span<const std::uint32_t> order,
                                       const Grid& grid, std::span<const std::int64_t> carried) {
  const std::int64_t total =
      std::accumulate(samples.cost.begin(), samples.cost.end(), std::int64_t{0});
  std::vector<std::int64_t> targets(grid.slots);
  std::int64_t left = total / grid.ranks;
  for (std::uint32_t q = 0; q < grid.slots; ++q) {
    const std::size_t first = std::size_t{q} * grid.ranks;
    const std::int64_t largest = first < order.size() ? samples.cost[order[first]] : 0;
    const std::int64_t even = left / (grid.slots - q);
    if (largest <= even) {
      std::fill(targets.begin() + q, targets.end(), even);
      break;
    }
    targets[q] = largest;
    const std::int64_t takes = q < carried.size() ? std::min(largest, carried[q]) : largest;
    left = std::max<std::int64_t>(0, left - takes);
  }
  return targets;
}

}  // namespace flowtrain::packing
