#include "packing/profile.hpp"

#include <algorithm>
#include <numeric>

namespace flowtrain::packing {

namespace {

__extension__ using Wide = __int128;

/// What slots can carry at most, one after the other, densest samples first.
///
/// Costs grow faster than tokens, so by descending cost is by descending density, too.
class Carrier {
 public:
  Carrier(const Samples& samples, std::span<const std::uint32_t> order, const Grid& grid)
      : samples_(samples), order_(order), grid_(grid) {}

  /// Most cost per rank of the next slot if it lasts as long as `target`.
  std::int64_t next(std::int64_t target) {
    const std::int64_t most = target * grid_.ranks;
    std::int64_t cost = 0;
    Wide room = static_cast<Wide>(grid_.token_cap) * grid_.ranks;
    while (at_ < order_.size() && cost < most && room >= samples_.tokens[order_[at_]]) {
      cost += samples_.cost[order_[at_]];
      room -= samples_.tokens[order_[at_++]];
    }
    return std::min(cost, most) / grid_.ranks;
  }

 private:
  const Samples& samples_;
  std::span<const std::uint32_t> order_;
  const Grid& grid_;
  std::size_t at_ = 0;
};

}  // namespace

std::vector<std::int64_t> slot_targets(const Samples& samples, std::span<const std::uint32_t> order,
                                       const Grid& grid) {
  const std::int64_t total =
      std::accumulate(samples.cost.begin(), samples.cost.end(), std::int64_t{0});
  std::vector<std::int64_t> targets(grid.slots);
  std::int64_t left = total / grid.ranks;
  Carrier carrier(samples, order, grid);
  for (std::uint32_t q = 0; q < grid.slots; ++q) {
    const std::size_t first = std::size_t{q} * grid.ranks;
    const std::int64_t largest = first < order.size() ? samples.cost[order[first]] : 0;
    const std::int64_t even = left / (grid.slots - q);
    if (largest <= even) {
      std::fill(targets.begin() + q, targets.end(), even);
      break;
    }
    targets[q] = largest;
    left = std::max<std::int64_t>(0, left - carrier.next(largest));
  }
  return targets;
}

}  // namespace flowtrain::packing
