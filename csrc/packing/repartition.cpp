#include "packing/repartition.hpp"

#include <algorithm>
#include <bit>
#include <cstdlib>
#include <utility>

namespace flowtrain::packing {
namespace {

constexpr std::size_t kNear = 3;  // Neighbours considered where the cap forbids the nearest.

/// Orders values such that the first few are spread over all; others come first with each offset.
template <class T>
void spread(std::vector<T>& values, std::size_t few, std::size_t offset) {
  const std::size_t count = values.size(), stride = count / few + 1;
  if (stride == 1) return;
  const std::vector<T> from = values;
  values.clear();
  for (std::size_t first = 0; first < stride; ++first) {
    for (std::size_t k = first; k < count; k += stride)
      values.push_back(from[(k + offset) % count]);
  }
}

}  // namespace

/// Chooses what may change bins. Of equal samples only the number matters, and bundles of 1, 2, 4
/// ... and the rest make any number.
void Repartitioner::choose_bundles(std::uint32_t a, const Division& division) {
  const auto key = [](const Entry& entry) { return std::pair(entry.cost, entry.tokens); };
  const std::span<const std::int64_t> encoder = bins_.samples().encoder;
  const auto equal = [&](const Entry& x, const Entry& y) {
    return key(x) == key(y) && (encoder.empty() || encoder[x.sample] == encoder[y.sample]);
  };
  std::stable_sort(entries_.begin(), entries_.end(),
                   [&](const Entry& x, const Entry& y) { return key(x) > key(y); });
  for (std::vector<Bundle>& of_bin : kinds_) of_bin.clear();
  for (std::size_t k = 0, size = 1; k < entries_.size(); k += size, size = 1) {
    while (k + size < entries_.size() && equal(entries_[k + size], entries_[k])) ++size;
    kinds_[entries_[k].bin == a ? 0 : 1].push_back({k, size});
  }
  for (std::vector<Bundle>& of_bin : kinds_) {
    spread(of_bin, std::max(1U, division.movable / 2), division.offset);
  }
  bundles_.clear();
  for (std::size_t k = 0; k < std::max(kinds_[0].size(), kinds_[1].size()); ++k) {
    for (const std::vector<Bundle>& of_bin : kinds_) {
      if (k >= of_bin.size()) continue;
      auto [begin, left] = of_bin[k];
      for (std::size_t size = 1; left > 0 && bundles_.size() < division.movable; size *= 2) {
        size = std::min(size, left);
        bundles_.push_back({begin, size});
        for (std::size_t at = begin; at < begin + size; ++at) entries_[at].stays = false;
        begin += size, left -= size;
      }
    }
  }
}

Divided Repartitioner::divide(std::uint32_t a, std::uint32_t b, const Division& division) {
  const Samples& samples = bins_.samples();
  const bool two_modules = !samples.encoder.empty();
  entries_.clear();
  for (const std::uint32_t bin : {a, b}) {
    bins_.each(bin, [&](std::uint32_t i) {
      entries_.push_back({samples.cost[i], samples.tokens[i], i, bin, true});
    });
  }
  choose_bundles(a, division);
  const std::int64_t cost = bins_.load(a) + bins_.load(b);
  const std::int64_t tokens = bins_.tokens(a) + bins_.tokens(b);
  constexpr int kWord = 62 - static_cast<int>(SubsetSums::kMost);
  const int shift =
      std::max(0, static_cast<int>(std::bit_width(static_cast<std::uint64_t>(cost))) - kWord);
  for (SubsetSums& sums : half_) sums.clear(shift);
  for (std::vector<std::int64_t>& sums : encoder_) sums.assign(1, 0);
  for (std::size_t k = 0; k < bundles_.size(); ++k) {
    const auto [begin, size] = bundles_[k];
    const auto count = static_cast<std::int64_t>(size);
    half_[k % 2].add(entries_[begin].cost * count, entries_[begin].tokens * count);
    if (!two_modules) continue;
    std::vector<std::int64_t>& sums = encoder_[k % 2];
    for (std::size_t s = 0, half = sums.size(); s < half; ++s) {
      sums.push_back(sums[s] + samples.encoder[entries_[begin].sample] * count);
    }
  }
  std::int64_t kept_cost = 0, kept_tokens = 0, kept_encoder = 0, encoder = 0, encoder_of_a = 0;
  for (const Entry& entry : entries_) {
    if (entry.stays && entry.bin == a) kept_cost += entry.cost, kept_tokens += entry.tokens;
    if (!two_modules) continue;
    const std::int64_t part = samples.encoder[entry.sample];
    encoder += part;
    if (entry.bin == a) encoder_of_a += part, kept_encoder += entry.stays ? part : 0;
  }
  // Cost of the movable samples that `a` should get, and the limits of their tokens.
  const std::int64_t wanted = division.target - kept_cost;
  const std::int64_t max_tokens = max_tokens_ - kept_tokens;
  const std::int64_t min_tokens = tokens - kept_tokens - max_tokens_;

  // Largest load of a module, for a load of `a` and the encoder's part of it.
  const auto largest = [&](std::int64_t load, std::int64_t part) {
    const std::int64_t other = load - part, backbone = cost - encoder;
    return std::max({part, encoder - part, other, backbone - other});
  };
  const std::int64_t before = two_modules ? largest(bins_.load(a), encoder_of_a)
                                          : std::abs(bins_.load(a) - division.target);
  std::int64_t best = before;
  std::size_t best_x = 0, best_y = 0;
  const SubsetSums& first = half_[0];
  const SubsetSums& second = half_[1];
  // Finds the division of the lowest rating, which is compiled in: a branch would be felt.
  const auto search = [&](auto rate) {
    const auto consider = [&](std::size_t x, std::size_t y) {
      const std::int64_t rating = rate(x, y);
      if (rating >= best) return;
      const std::int64_t sum = first.tokens(x) + second.tokens(y);
      if (sum <= max_tokens && sum >= min_tokens) best = rating, best_x = x, best_y = y;
    };
    // Pairs of sums next to `wanted`: from the lowest and the highest, one step of either at a
    // time.
    const std::int64_t rounded = wanted >> shift;
    for (std::size_t x = 0, y = second.count(); x < first.count() && y > 0;) {
      const std::int64_t off = first.rounded(x) + second.rounded(y - 1) - rounded;
      const bool above = off >= 0;
      if ((std::abs(off) << shift) < best) {
        consider(x, y - 1);
        for (std::size_t k = 1; k <= kNear; ++k) {
          if (above && y - 1 + k < second.count()) consider(x, y - 1 + k);
          if (!above && y > k) consider(x, y - 1 - k);
        }
        if (best <= division.tolerance) break;
      }
      x += !above;
      y -= above;
    }
  };
  const auto cost_of = [&](std::size_t x, std::size_t y) { return first.cost(x) + second.cost(y); };
  if (two_modules) {
    search([&](std::size_t x, std::size_t y) {
      const std::int64_t part =
          kept_encoder + encoder_[0][first.subset(x)] + encoder_[1][second.subset(y)];
      return largest(kept_cost + cost_of(x, y), part);
    });
  } else {
    search([&](std::size_t x, std::size_t y) { return std::abs(cost_of(x, y) - wanted); });
  }
  const std::size_t sums = first.count() + second.count();
  if (best >= before) return {false, sums};

  bins_.clear(a);
  bins_.clear(b);
  for (std::size_t k = 0; k < bundles_.size(); ++k) {
    const std::size_t chosen = k % 2 == 0 ? first.subset(best_x) : second.subset(best_y);
    const auto [begin, size] = bundles_[k];
    for (std::size_t at = begin; at < begin + size; ++at) {
      entries_[at].bin = (chosen >> (k / 2)) & 1U ? a : b;
    }
  }
  for (const Entry& entry : entries_) bins_.add(entry.sample, entry.bin);
  return {true, sums};
}

}  // namespace flowtrain::packing
