#include "packing/profile.hpp"

#include <algorithm>
#include <functional>
#include <numeric>
#include <utility>

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
    const Wide most = Wide{target} * grid_.ranks;
    Wide cost = 0;
    Wide room = static_cast<Wide>(grid_.token_cap) * grid_.ranks;
    while (at_ < order_.size() && cost < most && room >= samples_.tokens[order_[at_]]) {
      cost += samples_.cost[order_[at_]];
      room -= samples_.tokens[order_[at_++]];
    }
    return static_cast<std::int64_t>(std::min(cost, most) / grid_.ranks);
  }

 private:
  const Samples& samples_;
  std::span<const std::uint32_t> order_;
  const Grid& grid_;
  std::size_t at_ = 0;
};

/// Place in `order` of the first sample from `at` on that a slot of `target` does not hold, if each
/// goes where least is, or of the first that costs no more than `even`.
std::size_t first_beyond(const Samples& samples, std::span<const std::uint32_t> order,
                         const Grid& grid, std::size_t at, std::int64_t target, std::int64_t even) {
  using Bin = std::pair<std::int64_t, std::int64_t>;  // Load and tokens.
  std::vector<Bin> lightest(grid.ranks);              // A heap.
  for (; at < order.size() && samples.cost[order[at]] > even; ++at) {
    const auto [load, tokens] = lightest.front();
    const Bin filled{load + samples.cost[order[at]], tokens + samples.tokens[order[at]]};
    if (filled.first > target || filled.second > grid.token_cap) break;
    std::pop_heap(lightest.begin(), lightest.end(), std::greater<>());
    lightest.back() = filled;
    std::push_heap(lightest.begin(), lightest.end(), std::greater<>());
  }
  return at;
}

}  // namespace

std::vector<std::int64_t> slot_targets(const Samples& samples, std::span<const std::uint32_t> order,
                                       const Grid& grid) {
  const std::int64_t total =
      std::accumulate(samples.cost.begin(), samples.cost.end(), std::int64_t{0});
  std::vector<std::int64_t> targets(grid.slots);
  std::int64_t left = total / grid.ranks;
  Carrier carrier(samples, order, grid);
  std::size_t at = 0;
  for (std::uint32_t q = 0; q < grid.slots; ++q) {
    const std::int64_t even = left / (grid.slots - q);
    if (q > 0) at = first_beyond(samples, order, grid, at, targets[q - 1], even);
    const std::int64_t largest = at < order.size() ? samples.cost[order[at]] : 0;
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
