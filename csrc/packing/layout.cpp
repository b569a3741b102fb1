#include "packing/layout.hpp"

#include <algorithm>

#include "packing/order.hpp"

namespace flowtrain::packing {

Vector<std::uint32_t> align(const Bins& bins) { return order_descending(bins.loads()); }

void lay_out(Schedule& out, const Bins& bins, std::uint32_t ranks) {
  const Vector<std::uint32_t> aligned = align(bins);
  std::vector<std::int32_t> slot(aligned.size()), rank(aligned.size());
  std::vector<std::int64_t> sums(ranks);
  std::vector<std::uint32_t> lightest(ranks);
  std::iota(lightest.begin(), lightest.end(), 0U);
  for (std::size_t first = 0; first < aligned.size(); first += ranks) {
    std::stable_sort(lightest.begin(), lightest.end(),
                     [&](std::uint32_t a, std::uint32_t b) { return sums[a] < sums[b]; });
    for (std::size_t k = 0; k < ranks; ++k) {
      const std::uint32_t bin = aligned[first + k];
      slot[bin] = static_cast<std::int32_t>(first / ranks);
      rank[bin] = static_cast<std::int32_t>(lightest[k]);
      sums[lightest[k]] += bins.load(bin);
    }
  }
  for (std::size_t i = 0; i < out.slot.size(); ++i) {
    const std::uint32_t bin = bins.bin_of()[i];
    out.slot[i] = bin == kNone ? -1 : slot[bin];
    out.rank[i] = bin == kNone ? -1 : rank[bin];
  }
}

std::vector<std::int64_t> microbatch_loads(const Schedule& schedule, const Samples& samples,
                                           const Grid& grid) {
  std::vector<std::int64_t> loads(grid.bins());
  for (std::size_t i = 0; i < samples.size(); ++i) {
    if (schedule.slot[i] < 0) continue;
    loads[static_cast<std::size_t>(schedule.rank[i]) * grid.slots +
          static_cast<std::size_t>(schedule.slot[i])] += samples.cost[i];
  }
  return loads;
}

}  // namespace flowtrain::packing
