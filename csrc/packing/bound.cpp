#include "packing/bound.hpp"

#include <algorithm>
#include <numeric>

#include "base/math.hpp"
#include "packing/order.hpp"

namespace flowtrain::packing {
std::int64_t max_bin_bound(const Samples& samples, Order order, std::uint32_t bins) {
  if (order.empty()) return 0;
  Vector<std::int64_t> sums(order.size() + 1);  // Of the largest.
  for (std::size_t k = 0; k < order.size(); ++k) sums[k + 1] = sums[k] + samples.cost[order[k]];
  std::int64_t bound = std::max(divide_up(sums.back(), bins), samples.cost[order[0]]);
  for (std::size_t end = bins + 1; end <= order.size(); ++end) {
    const std::size_t j = (end - 1) / bins, over = end - j * bins;
    const auto held = [&](std::size_t q) { return sums[end] - sums[j * (bins - q)]; };
    if (held(over) <= Wide{bound} * static_cast<std::int64_t>(over)) continue;
    // With q the mean over q bins falls to its minimum, then rises: every further bin holds j
    // larger samples than the one before.
    const auto rises = [&](std::size_t from) {
      return Wide{held(from)} * static_cast<std::int64_t>(from + 1) <
             Wide{held(from + 1)} * static_cast<std::int64_t>(from);
    };
    std::size_t q = 1;
    for (std::size_t high = over; q < high;) {
      const std::size_t middle = q + (high - q) / 2;
      if (rises(middle)) {
        high = middle;
      } else {
        q = middle + 1;
      }
    }
    bound = std::max(bound, divide_up(held(q), static_cast<std::int64_t>(q)));
  }
  return bound;
}

namespace {

/// Whether the ranks of a pipeline could do all work by `end`, as far as `pipeline_bound` can tell.
bool could_end_by(std::int64_t end, std::int64_t total, const Samples& samples, Order order,
                  const Grid& grid) {
  const std::int64_t others = grid.stages - 1;
  const auto even = static_cast<std::int64_t>(Wide{end} * grid.slots / (grid.slots + others));
  Wide done = 0, held = 0;
  std::size_t next = 0;  // The largest sample that the ranks so far cannot hold.
  for (std::uint32_t rank = 0; rank < grid.ranks; ++rank) {
    const std::int64_t heaviest = next < order.size() ? samples.cost[order[next]] : 0;
    const Wide work = std::min<Wide>(even, end - Wide{others} * heaviest);
    if (work < heaviest) return false;
    done += work;
    if (done >= total) return true;
    while (next < order.size() && held + samples.cost[order[next]] <= done) {
      held += samples.cost[order[next++]];
    }
  }
  return false;
}

}  // namespace

std::int64_t pipeline_bound(const Samples& samples, Order order, const Grid& grid) {
  if (order.empty()) return 0;
  const std::int64_t total = sum(samples.cost);
  const std::int64_t stages = grid.stages;
  std::int64_t low = std::max(max_bin_bound(samples, order, grid.ranks),
                              stages * max_bin_bound(samples, order, grid.bins()));
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
