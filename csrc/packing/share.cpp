#include "packing/share.hpp"

#include <algorithm>
#include <array>
#include <bit>
#include <cstdlib>
#include <utility>

namespace flowtrain::packing {
namespace {

constexpr std::size_t kSorting = 128;  // What it costs to find equal samples, in sums.
constexpr std::size_t kNear = 3;       // Neighbours looked at where the cap forbids the nearest.

}  // namespace

/// Each bin gives half of the free samples, or what it has: bundles of one.
void Sharer::choose_single(const Deal& deal) {
  auto& [in_a, in_b] = kept_;
  const std::size_t half = deal.free / 2;
  const std::size_t from_a =
      std::min(in_a.size(), std::max(half, 2 * half - std::min(2 * half, in_b.size())));
  const std::size_t from_b = std::min(in_b.size(), 2 * half - from_a);
  for (auto [bin, taken] : {std::pair{&in_a, from_a}, std::pair{&in_b, from_b}}) {
    if (taken == 0) continue;
    // Spread over the bin, since neighbours in it came one after another and cost much the same.
    const std::size_t count = bin->size(), stride = count / taken;
    const std::size_t start = count > taken ? deal.turn * half % count : 0;
    std::rotate(bin->begin(), bin->begin() + static_cast<std::ptrdiff_t>(start), bin->end());
    for (std::size_t k = 1; k < taken; ++k) std::swap((*bin)[k], (*bin)[k * stride]);
    for (std::size_t k = 0; k < taken; ++k) free_.push_back((*bin)[k]), bundles_.push_back(1);
    bin->erase(bin->begin(), bin->begin() + static_cast<std::ptrdiff_t>(taken));
  }
}

/// Of equal samples only the number matters, and bundles of 1, 2, 4 ... and the rest make any: a
/// few bundles free most of both bins.
void Sharer::choose_alike(const Deal& deal) {
  const Samples& samples = bins_.samples();
  struct Kind {
    std::array<std::size_t, 2> begin, end;  // In each bin.
  };
  std::vector<Kind> kinds;
  const auto before = [&](std::uint32_t x, std::uint32_t y) {
    return std::pair(samples.cost[x], samples.tokens[x]) >
           std::pair(samples.cost[y], samples.tokens[y]);
  };
  for (std::vector<std::uint32_t>& bin : kept_) std::stable_sort(bin.begin(), bin.end(), before);
  const auto& [in_a, in_b] = kept_;
  for (std::size_t a = 0, b = 0; a < in_a.size() || b < in_b.size();) {
    const bool from_a = b == in_b.size() || (a < in_a.size() && !before(in_b[b], in_a[a]));
    const std::uint32_t first = from_a ? in_a[a] : in_b[b];
    Kind kind{{a, b}, {a, b}};
    while (kind.end[0] < in_a.size() && !before(first, in_a[kind.end[0]])) ++kind.end[0];
    while (kind.end[1] < in_b.size() && !before(first, in_b[kind.end[1]])) ++kind.end[1];
    a = kind.end[0], b = kind.end[1];
    kinds.push_back(kind);
  }
  std::array<std::vector<std::uint32_t>, 2> stay;
  for (std::size_t k = 0; k < kinds.size(); ++k) {
    // Another kind comes first in every turn, for when not all can be free.
    const Kind& kind = kinds[(k + deal.turn) % kinds.size()];
    const std::size_t of_a = kind.end[0] - kind.begin[0], of_b = kind.end[1] - kind.begin[1];
    const std::size_t left = deal.free - bundles_.size();
    const std::size_t count = std::min(of_a + of_b, (std::size_t{1} << left) - 1);
    const std::size_t from_a = std::min(of_a, std::max(count / 2, count - std::min(count, of_b)));
    for (const auto& [side, taken] : {std::pair{0U, from_a}, std::pair{1U, count - from_a}}) {
      const auto at = kept_[side].begin();
      const auto begin = at + static_cast<std::ptrdiff_t>(kind.begin[side]);
      const auto middle = begin + static_cast<std::ptrdiff_t>(taken);
      free_.insert(free_.end(), begin, middle);
      stay[side].insert(stay[side].end(), middle, at + static_cast<std::ptrdiff_t>(kind.end[side]));
    }
    for (std::size_t rest = count, size = 1; rest > 0; rest -= size, size *= 2) {
      size = std::min(size, rest);
      bundles_.push_back(static_cast<std::uint32_t>(size));
    }
  }
  kept_.swap(stay);
}

Shared Sharer::share(std::uint32_t a, std::uint32_t b, const Deal& deal) {
  const Samples& samples = bins_.samples();
  free_.clear();
  bundles_.clear();
  for (auto [bin, kept] : {std::pair{a, &kept_[0]}, std::pair{b, &kept_[1]}}) {
    kept->clear();
    bins_.each(bin, [kept = kept](std::uint32_t i) { kept->push_back(i); });
  }
  if (deal.alike) {
    choose_alike(deal);
  } else {
    choose_single(deal);
  }
  const std::int64_t cost = bins_.load(a) + bins_.load(b);
  const std::int64_t tokens = bins_.tokens(a) + bins_.tokens(b);
  constexpr int kWord = 62 - static_cast<int>(SubsetSums::kMost);
  const int shift =
      std::max(0, static_cast<int>(std::bit_width(static_cast<std::uint64_t>(cost))) - kWord);
  for (SubsetSums& sums : half_) sums.clear(shift);
  for (std::size_t k = 0, i = 0; k < bundles_.size(); i += bundles_[k++]) {
    const std::int64_t of_one = samples.tokens[free_[i]];
    half_[k % 2].add(samples.cost[free_[i]] * bundles_[k], of_one * bundles_[k]);
  }
  std::int64_t kept_cost = 0, kept_tokens = 0;
  for (const std::uint32_t i : kept_[0]) {
    kept_cost += samples.cost[i], kept_tokens += samples.tokens[i];
  }
  // What `a` should get of what is free, and the tokens that the cap leaves it and `b`.
  const std::int64_t wish = deal.wish - kept_cost;
  const std::int64_t most = token_cap_ - kept_tokens;
  const std::int64_t least = tokens - kept_tokens - token_cap_;

  const std::int64_t before = std::abs(bins_.load(a) - deal.wish);
  std::int64_t best = before;
  std::size_t best_x = 0, best_y = 0;
  const SubsetSums& first = half_[0];
  const SubsetSums& second = half_[1];
  const auto consider = [&](std::size_t x, std::size_t y) {
    const std::int64_t off = std::abs(first.cost(x) + second.cost(y) - wish);
    if (off >= best) return;
    const std::int64_t tokens = first.tokens(x) + second.tokens(y);
    if (tokens <= most && tokens >= least) best = off, best_x = x, best_y = y;
  };
  // Along the staircase of pairs around the wish.
  const std::int64_t rounded = wish >> shift;
  for (std::size_t x = 0, y = second.count(); x < first.count() && y > 0;) {
    const std::int64_t off = first.rounded(x) + second.rounded(y - 1) - rounded;
    const bool above = off >= 0;
    if ((std::abs(off) << shift) < best) {
      consider(x, y - 1);
      // Where the cap forbids it, those farther away.
      for (std::size_t k = 1; k <= kNear; ++k) {
        if (above && y - 1 + k < second.count()) consider(x, y - 1 + k);
        if (!above && y > k) consider(x, y - 1 - k);
      }
      if (best <= deal.enough) break;
    }
    x += !above;
    y -= above;
  }
  const std::size_t sums = first.count() + second.count() + (deal.alike ? kSorting : 0);
  if (best >= before) return {false, sums};

  bins_.clear(a);
  bins_.clear(b);
  for (const std::uint32_t i : kept_[0]) bins_.add(i, a);
  for (const std::uint32_t i : kept_[1]) bins_.add(i, b);
  for (std::size_t k = 0, i = 0; k < bundles_.size(); ++k) {
    const std::size_t chosen = k % 2 == 0 ? first.subset(best_x) : second.subset(best_y);
    const std::uint32_t bin = (chosen >> (k / 2)) & 1U ? a : b;
    for (const std::size_t end = i + bundles_[k]; i < end; ++i) bins_.add(free_[i], bin);
  }
  return {true, sums};
}

}  // namespace flowtrain::packing
