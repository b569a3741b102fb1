#include "packing/crowd.hpp"

#include <algorithm>
#include <vector>

#include "base/math.hpp"
#include "packing/place.hpp"

namespace flowtrain::packing {
namespace {

__extension__ using Wide = __int128;

}  // namespace

Crowd find_crowd(const Samples& samples, std::span<const std::uint32_t> order, std::uint32_t bins) {
  if (order.empty()) return {};
  std::vector<std::int64_t> sum(order.size() + 1);  // Of the largest.
  for (std::size_t k = 0; k < order.size(); ++k) sum[k + 1] = sum[k] + samples.cost[order[k]];
  const std::int64_t mean = divide_up(sum.back(), bins);
  const std::int64_t least = std::max(mean, samples.cost[order[0]]);
  Crowd crowd{.bound = least, .hole = least};
  for (std::size_t end = bins + 1; end <= order.size(); ++end) {
    const std::size_t j = (end - 1) / bins, over = end - j * bins;
    const auto held = [&](std::size_t q) { return sum[end] - sum[j * (bins - q)]; };
    if (over == 1) crowd.hole = std::max(crowd.hole, held(1));
    if (held(over) <= Wide{crowd.bound} * static_cast<std::int64_t>(over)) continue;
    // With q the mean over q bins falls to its least, then rises: every further bin holds j larger
    // samples than the one before.
    const auto rises = [&](std::size_t from) {
      return Wide{held(from)} * static_cast<std::int64_t>(from + 1) <
             Wide{held(from + 1)} * static_cast<std::int64_t>(from);
    };
    std::size_t q = 1;
    for (std::size_t most = over; q < most;) {
      const std::size_t middle = q + (most - q) / 2;
      if (rises(middle)) {
        most = middle;
      } else {
        q = middle + 1;
      }
    }
    const std::int64_t bound = divide_up(held(q), static_cast<std::int64_t>(q));
    if (bound <= crowd.bound) continue;
    crowd = {bound, crowd.hole, static_cast<std::uint32_t>(q), j * (bins - q), end};
  }
  return crowd;
}

std::size_t place_crowd(Bins& bins, std::span<const std::uint32_t> order, const Crowd& crowd,
                        std::int64_t token_cap) {
  const std::uint32_t others = bins.count() - crowd.bins;
  std::vector<std::int64_t> targets(bins.count(), crowd.bound);
  std::fill_n(targets.begin(), others, -crowd.bound);
  const std::size_t count = crowd.end - crowd.first;
  std::size_t unplaced = place(bins, order.subspan(crowd.first, count), targets, token_cap);
  std::fill_n(targets.begin(), others, crowd.bound);
  unplaced += place(bins, order.subspan(crowd.end), targets, token_cap);
  return unplaced + place(bins, order.first(crowd.first), targets, token_cap);
}

}  // namespace flowtrain::packing
