#include "packing/share.hpp"

#include <algorithm>
#include <array>
#include <cstdlib>
#include <utility>
#include <vector>

namespace flowtrain::packing {
namespace {

constexpr std::size_t kHalf = 7;
constexpr std::size_t kSums = std::size_t{1} << kHalf;
constexpr std::size_t kNear = 3;  // Neighbours looked at where the cap forbids the nearest.

/// All sums of the subsets of up to kHalf samples, by ascending cost.
struct Sums {
  std::array<std::int64_t, kSums> cost;
  std::array<std::int64_t, kSums> tokens;
  std::array<std::uint8_t, kSums> subset;
  std::size_t count = 1;

  Sums() { cost[0] = tokens[0] = subset[0] = 0; }

  /// Adds a sample: the sums without it and those with it are merged, from the largest down, so
  /// that nothing is overwritten before it was read.
  void add(std::int64_t more_cost, std::int64_t more_tokens, std::uint8_t bit) {
    std::size_t without = count, with = count;
    count *= 2;
    while (with > 0) {
      const bool take = without == 0 || cost[with - 1] + more_cost >= cost[without - 1];
      const std::size_t from = (take ? with : without) - 1, to = with + without - 1;
      cost[to] = cost[from] + (take ? more_cost : 0);
      tokens[to] = tokens[from] + (take ? more_tokens : 0);
      subset[to] = static_cast<std::uint8_t>(subset[from] | (take ? bit : 0));
      with -= take;
      without -= !take;
    }
  }
};

}  // namespace

Shared share_anew(Bins& bins, std::uint32_t a, std::uint32_t b, std::int64_t token_cap,
                  const Deal& deal) {
  const Samples& samples = bins.samples();
  thread_local std::vector<std::uint32_t> in_a, in_b;
  in_a.clear();
  in_b.clear();
  bins.each(a, [](std::uint32_t i) { in_a.push_back(i); });
  bins.each(b, [](std::uint32_t i) { in_b.push_back(i); });
  // Each bin gives half of the free samples, or what it has.
  const std::size_t half_free = std::min<std::size_t>(deal.free / 2, kHalf),
                    free_count = 2 * half_free;
  const std::size_t from_a =
      std::min(in_a.size(), std::max(half_free, free_count - std::min(free_count, in_b.size())));
  const std::size_t from_b = std::min(in_b.size(), free_count - from_a);
  for (auto [bin, taken] : {std::pair{&in_a, from_a}, std::pair{&in_b, from_b}}) {
    const std::size_t start = bin->size() > taken ? deal.turn * half_free % bin->size() : 0;
    std::rotate(bin->begin(), bin->begin() + static_cast<std::ptrdiff_t>(start), bin->end());
    // Spread over the bin, since neighbours in it came one after another and cost much the same.
    const std::size_t stride = taken > 0 ? bin->size() / taken : 0;
    for (std::size_t k = 1; k < taken; ++k) std::swap((*bin)[k], (*bin)[k * stride]);
  }

  std::array<std::uint32_t, 2 * kHalf> free;
  std::copy_n(in_a.begin(), from_a, free.begin());
  std::copy_n(in_b.begin(), from_b, free.begin() + from_a);
  const std::size_t count = from_a + from_b;
  std::array<Sums, 2> half;
  std::int64_t free_cost = 0, free_tokens = 0, a_cost = 0, a_tokens = 0;
  for (std::size_t i = 0; i < count; ++i) {
    const std::int64_t cost = samples.cost[free[i]], tokens = samples.tokens[free[i]];
    half[i % 2].add(cost, tokens, static_cast<std::uint8_t>(1U << (i / 2)));
    free_cost += cost;
    free_tokens += tokens;
    if (i < from_a) a_cost += cost, a_tokens += tokens;
  }
  // What `a` should get of the free samples, and the tokens that the cap leaves it.
  const std::int64_t wish = deal.wish - (bins.load(a) - a_cost);
  const std::int64_t most = token_cap - (bins.tokens(a) - a_tokens);
  const std::int64_t least =
      free_tokens - (token_cap - (bins.tokens(b) - (free_tokens - a_tokens)));

  std::int64_t best = std::abs(a_cost - wish);
  const std::int64_t before = best;
  std::size_t best_x = 0, best_y = 0;
  const Sums& first = half[0];
  const Sums& second = half[1];
  const auto consider = [&](std::size_t x, std::size_t y) {
    const std::int64_t off = std::abs(first.cost[x] + second.cost[y] - wish);
    if (off >= best) return false;
    const std::int64_t tokens = first.tokens[x] + second.tokens[y];
    if (tokens > most || tokens < least) return false;
    best = off, best_x = x, best_y = y;
    return true;
  };
  std::size_t above = second.count;  // First of the second half's sums that exceeds the wish.
  for (std::size_t x = 0; x < first.count && best > deal.enough; ++x) {
    while (above > 0 && first.cost[x] + second.cost[above - 1] >= wish) --above;
    for (std::size_t k = 0; k < kNear && above + k < second.count; ++k) {
      if (first.cost[x] + second.cost[above + k] - wish >= best) break;
      if (consider(x, above + k)) break;
    }
    for (std::size_t k = 1; k <= kNear && k <= above; ++k) {
      if (wish - first.cost[x] - second.cost[above - k] >= best) break;
      if (consider(x, above - k)) break;
    }
  }
  const std::size_t sums = first.count + second.count;
  if (best >= before) return {false, sums};

  bins.clear(a);
  bins.clear(b);
  for (std::size_t i = from_a; i < in_a.size(); ++i) bins.add(in_a[i], a);
  for (std::size_t i = from_b; i < in_b.size(); ++i) bins.add(in_b[i], b);
  for (std::size_t i = 0; i < count; ++i) {
    const std::uint8_t chosen = i % 2 == 0 ? first.subset[best_x] : second.subset[best_y];
    bins.add(free[i], (chosen >> (i / 2)) & 1U ? a : b);
  }
  return {true, sums};
}

}  // namespace flowtrain::packing
