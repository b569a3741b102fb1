#include "packing/fill.hpp"

#include <algorithm>
#include <numeric>

#include "packing/align.hpp"
#include "packing/order.hpp"
#include "packing/place.hpp"
#include "packing/search.hpp"

namespace flowtrain::packing {

std::int64_t sum(std::span<const std::int64_t> values) {
  return std::accumulate(values.begin(), values.end(), std::int64_t{0});
}

std::int64_t rank_room(const Grid& grid) {
  __extension__ using Wide = __int128;
  constexpr Wide kMost = std::int64_t{1} << 62;  // No tokens are more.
  return static_cast<std::int64_t>(std::min(kMost, Wide{grid.token_cap} * grid.slots * 49 / 50));
}

Bins fill(const Samples& samples, Order order, std::span<const std::int64_t> targets,
          std::int64_t token_cap, Overflow overflow, std::size_t* unplaced) {
  const auto count = static_cast<std::uint32_t>(targets.size());
  Bins bins(samples, count);
  *unplaced = place(bins, order, targets, token_cap);
  if (*unplaced == 0 || overflow == Overflow::kLeave) return bins;
  Bins tight(samples, count);
  const std::size_t missing = place_tightly(tight, order_descending(samples.tokens), token_cap);
  if (missing > 0 && overflow == Overflow::kSearch) {
    const Search search = search_bins(samples.tokens, count, token_cap);
    Bins found(samples, count);
    for (std::uint32_t i = 0; i < search.bin_of.size(); ++i) found.add(i, search.bin_of[i]);
    if (!search.bin_of.empty()) {
      *unplaced = 0;
      return found;
    }
  }
  if (missing >= *unplaced) return bins;
  *unplaced = missing;
  return tight;
}

bool alike(const Samples& samples, Order order, std::uint32_t bins) {
  std::size_t kinds = 1;
  for (std::size_t k = 1; k < order.size() && kinds * bins <= 2 * order.size(); ++k) {
    kinds += samples.cost[order[k]] != samples.cost[order[k - 1]] ||
             samples.tokens[order[k]] != samples.tokens[order[k - 1]];
  }
  return kinds * bins <= 2 * order.size();
}

void lay_out(Schedule& out, const Bins& bins, std::span<const std::uint32_t> aligned,
             std::uint32_t ranks) {
  const std::vector<std::uint32_t> dealt = deal_ranks(bins.loads(), aligned, ranks);
  std::vector<std::int32_t> slot(aligned.size()), rank(aligned.size());
  for (std::size_t i = 0; i < aligned.size(); ++i) {
    slot[aligned[i]] = static_cast<std::int32_t>(i / ranks);
    rank[aligned[i]] = static_cast<std::int32_t>(dealt[i]);
  }
  for (std::size_t i = 0; i < out.slot.size(); ++i) {
    const std::uint32_t bin = bins.bin_of()[i];
    out.slot[i] = bin == kNone ? -1 : slot[bin];
    out.rank[i] = bin == kNone ? -1 : rank[bin];
  }
}

bool lay_out_rank(Schedule& out, const Samples& samples, std::span<const std::uint32_t> mine,
                  std::uint32_t rank, const Grid& grid, const Effort& effort) {
  std::vector<std::int64_t> tokens, cost;
  for (const std::uint32_t i : mine) {
    tokens.push_back(samples.tokens[i]);
    cost.push_back(samples.cost[i]);
  }
  const Samples own{tokens, cost};
  std::vector<std::uint32_t> order(mine.size());
  std::iota(order.begin(), order.end(), 0U);  // They come by descending cost.
  const std::vector<std::int64_t> targets(grid.slots, sum(cost) / grid.slots);
  std::size_t unplaced = 0;
  Bins bins = fill(own, order, targets, grid.token_cap, Overflow::kPack, &unplaced);
  if (unplaced > 0) return false;
  refine(bins, targets, 0, grid.token_cap, effort);
  const std::vector<std::uint32_t> aligned = align(bins.loads());
  std::vector<std::int32_t> slot(grid.slots);
  for (std::uint32_t m = 0; m < grid.slots; ++m) slot[aligned[m]] = static_cast<std::int32_t>(m);
  for (std::size_t k = 0; k < mine.size(); ++k) {
    out.slot[mine[k]] = slot[bins.bin_of()[k]];
    out.rank[mine[k]] = static_cast<std::int32_t>(rank);
  }
  return true;
}

std::vector<std::vector<std::uint32_t>> by_rank(Order order, const Bins& bins) {
  std::vector<std::vector<std::uint32_t>> mine(bins.count());
  for (const std::uint32_t i : order) {
    if (bins.bin_of()[i] != kNone) mine[bins.bin_of()[i]].push_back(i);
  }
  return mine;
}

}  // namespace flowtrain::packing
