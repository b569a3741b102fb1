#include "packing/refine.hpp"

#include <algorithm>
#include <numeric>
#include <vector>

#include "packing/order.hpp"
#include "packing/repartition.hpp"

namespace flowtrain::packing {

std::uint64_t refine(Bins& bins, std::span<const std::int64_t> targets, std::uint32_t first,
                     std::int64_t max_tokens, const Effort& effort) {
  std::vector<std::uint32_t> live(bins.count() - first);
  std::iota(live.begin(), live.end(), first);
  Repartitioner repartitioner(bins, max_tokens);
  std::vector<std::uint8_t> failures(bins.count());
  std::vector<std::int64_t> excess;
  std::uint64_t work = 0;
  for (std::uint32_t pass = 0; pass < effort.passes && live.size() > 1; ++pass) {
    const std::size_t half = live.size() / 2;
    excess.resize(live.size());
    for (std::size_t i = 0; i < live.size(); ++i) {
      excess[i] = bins.load(live[i]) - targets[live[i]];
    }
    // Only excess over the average is reduced.
    const Wide all = std::accumulate(excess.begin(), excess.end(), Wide{0});
    const std::int64_t limit =
        static_cast<std::int64_t>(all / static_cast<std::int64_t>(excess.size())) +
        effort.tolerance;
    if (*std::max_element(excess.begin(), excess.end()) <= limit) return work;
    const Vector<std::uint32_t> sorted = order_descending(excess);
    for (std::size_t i = 0; i < half; ++i) {
      // Pairs the bins farthest above with those farthest below or, in odd passes, with the middle,
      // since the farthest may hold few and large samples. Partners change in every pass.
      const std::uint32_t above = sorted[i];
      const std::size_t other = (i + pass / 2) % half;
      const std::uint32_t below = sorted[pass % 2 == 0 ? sorted.size() - 1 - other : half + other];
      if (excess[above] <= limit) continue;
      const std::uint32_t high = live[above], low = live[below];
      if (work >= effort.work) return work;
      const std::int64_t apart = bins.load(high) - targets[high] - (bins.load(low) - targets[low]);
      // Few movable samples first: most pairs need no more.
      const std::uint32_t movable = pass < 2 ? 12 : pass < 8 ? 14 : 20;
      const auto [better, sums] = repartitioner.divide(
          high, low, {bins.load(high) - apart / 2, movable, pass, effort.tolerance / 4});
      work += sums;
      if (better) {
        failures[high] = failures[low] = 0;
      } else {
        ++failures[high];
        ++failures[low];
      }
    }
    std::erase_if(live, [&](std::uint32_t b) { return failures[b] >= effort.patience; });
  }
  return work;
}

}  // namespace flowtrain::packing
