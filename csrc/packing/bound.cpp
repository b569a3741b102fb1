#include "packing/bound.hpp"

#include <algorithm>
#include <numeric>
#include <vector>

#include "base/math.hpp"
#include "packing/crowd.hpp"
#include "packing/order.hpp"

namespace flowtrain::packing {
namespace {

__extension__ using Wide = __int128;

/// Upper bounds of what some tokens can cost. Any price of a token gives a valid one (weak
/// duality), so the order by density, which is only used to choose the price, may be rounded.
class Knapsack {
 public:
  /// `order` is samples by descending cost.
  Knapsack(const Samples& samples, std::span<const std::uint32_t> order)
      : samples_(samples), by_density_(order_by_density(samples, order)) {}

  std::int64_t most(std::int64_t tokens) const {
    std::int64_t room = tokens, sum = 0;
    for (const std::uint32_t i : by_density_) {
      if (samples_.tokens[i] > room) return priced(tokens, i);
      room -= samples_.tokens[i];
      sum += samples_.cost[i];
    }
    return sum;
  }

 private:
  /// The bound with the price of a token as in sample `k`.
  std::int64_t priced(std::int64_t tokens, std::uint32_t k) const {
    const Wide cost = samples_.cost[k], per = samples_.tokens[k];
    Wide sum = cost * tokens;
    for (std::size_t i = 0; i < samples_.size(); ++i) {
      sum += std::max<Wide>(0, samples_.cost[i] * per - cost * samples_.tokens[i]);
    }
    return static_cast<std::int64_t>((sum + per - 1) / per);
  }

  const Samples& samples_;
  std::vector<std::uint32_t> by_density_;
};

}  // namespace

std::int64_t makespan_bound(const Samples& samples, std::span<const std::uint32_t> order,
                            std::uint32_t bins) {
  return find_crowd(samples, order, bins).bound;
}

std::int64_t lockstep_bound(const Samples& samples, std::span<const std::uint32_t> order,
                            const Grid& grid) {
  if (order.empty()) return 0;
  const std::int64_t total =
      std::accumulate(samples.cost.begin(), samples.cost.end(), std::int64_t{0});
  const std::int64_t even = divide_up(total, grid.ranks);
  std::int64_t bound = std::max(even, samples.cost[order[0]]);
  // Slots that samples above half the cap make long, longest first.
  std::vector<std::int64_t> long_slots{samples.cost[order[0]]};
  std::size_t halves = 0;
  for (const std::uint32_t i : order) {
    if (samples.tokens[i] <= grid.token_cap / 2) continue;
    if (halves > 0 && halves % grid.ranks == 0) long_slots.push_back(samples.cost[i]);
    ++halves;
  }
  if (long_slots.size() > grid.slots) long_slots.resize(grid.slots);  // Nothing fits then.
  // q slots carry at least their share of the total, so only what is longer than that can help.
  const auto helps = [&](std::int64_t sum, std::size_t q) {
    return Wide{sum} * grid.slots > Wide{even} * static_cast<std::int64_t>(q);
  };
  std::int64_t sum = 0;
  std::size_t most = 0;
  for (std::size_t q = 1; q <= long_slots.size(); ++q) {
    sum += long_slots[q - 1];
    if (helps(sum, q)) most = q;
  }
  if (most == 0) return bound;
  const Knapsack knapsack(samples, order);
  sum = 0;
  for (std::size_t q = 1; q <= most; ++q) {
    sum += long_slots[q - 1];
    if (!helps(sum, q)) continue;
    const Wide room = Wide{grid.token_cap} * grid.ranks * static_cast<std::int64_t>(q);
    const std::int64_t carried =
        knapsack.most(static_cast<std::int64_t>(std::min<Wide>(room, INT64_MAX / 2)));
    const std::int64_t others = std::max<std::int64_t>(0, total - carried);
    bound = std::max(bound, sum + divide_up(others, grid.ranks));
  }
  return bound;
}

namespace {

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
