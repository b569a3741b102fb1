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

void Repartitioner::list_samples(std::uint32_t a, std::uint32_t b) {
  const Samples& samples = bins_.samples();
  entries_.clear();
  for (const std::uint32_t bin : {a, b}) {
    bins_.each(bin, [&](std::uint32_t i) {
      entries_.push_back({samples.cost[i], samples.tokens[i], i, bin, true});
    });
  }
}

Repartitioner::Loads Repartitioner::loads_of(std::uint32_t a, std::uint32_t b) const {
  const std::span<const std::int64_t> encoder = bins_.samples().encoder;
  Loads loads{.cost = bins_.load(a) + bins_.load(b), .tokens = bins_.tokens(a) + bins_.tokens(b)};
  for (const Entry& entry : entries_) {
    if (entry.stays && entry.bin == a) {
      loads.kept_cost += entry.cost;
      loads.kept_tokens += entry.tokens;
    }
    if (encoder.empty()) continue;
    const std::int64_t part = encoder[entry.sample];
    loads.encoder += part;
    if (entry.bin != a) continue;
    loads.encoder_of_a += part;
    if (entry.stays) loads.kept_encoder += part;
  }
  return loads;
}

/// Forms the sums of every other bundle in each half. Returns the shift by which costs are rounded.
int Repartitioner::form_sums(std::int64_t cost) {
  const std::span<const std::int64_t> encoder = bins_.samples().encoder;
  constexpr int kWord = 62 - static_cast<int>(SubsetSums::kMost);
  const int shift =
      std::max(0, static_cast<int>(std::bit_width(static_cast<std::uint64_t>(cost))) - kWord);
  for (SubsetSums& sums : half_) sums.clear(shift);
  for (std::vector<std::int64_t>& sums : encoder_) sums.assign(1, 0);
  for (std::size_t k = 0; k < bundles_.size(); ++k) {
    const auto [begin, size] = bundles_[k];
    const auto count = static_cast<std::int64_t>(size);
    half_[k % 2].add(entries_[begin].cost * count, entries_[begin].tokens * count);
    if (encoder.empty()) continue;
    std::vector<std::int64_t>& sums = encoder_[k % 2];
    for (std::size_t s = 0, half = sums.size(); s < half; ++s) {
      sums.push_back(sums[s] + encoder[entries_[begin].sample] * count);
    }
  }
  return shift;
}

/// Finds the division of the lowest rating, which is compiled in: a branch would be felt.
template <class Rate>
Repartitioner::Choice Repartitioner::search(const Goal& goal, Rate rate) const {
  const SubsetSums& first = half_[0];
  const SubsetSums& second = half_[1];
  Choice best{goal.rating, 0, 0};
  const auto consider = [&](std::size_t x, std::size_t y) {
    const std::int64_t rating = rate(x, y);
    if (rating >= best.rating) return;
    const std::int64_t sum = first.tokens(x) + second.tokens(y);
    if (sum <= goal.max_tokens && sum >= goal.min_tokens) best = {rating, x, y};
  };
  // Pairs of sums next to `wanted`: from the lowest and the highest, one step of either at a time.
  const std::int64_t rounded = goal.wanted >> goal.shift;
  for (std::size_t x = 0, y = second.count(); x < first.count() && y > 0;) {
    const std::int64_t off = first.rounded(x) + second.rounded(y - 1) - rounded;
    const bool above = off >= 0;
    if ((std::abs(off) << goal.shift) < best.rating) {
      consider(x, y - 1);
      for (std::size_t k = 1; k <= kNear; ++k) {
        if (above && y - 1 + k < second.count()) consider(x, y - 1 + k);
        if (!above && y > k) consider(x, y - 1 - k);
      }
      if (best.rating <= goal.tolerance) break;
    }
    x += !above;
    y -= above;
  }
  return best;
}

/// Gives `a` the bundles of the chosen subsets, and `b` the others.
void Repartitioner::assign(std::uint32_t a, std::uint32_t b, const Choice& choice) {
  const std::array subsets{half_[0].subset(choice.first), half_[1].subset(choice.second)};
  bins_.clear(a);
  bins_.clear(b);
  for (std::size_t k = 0; k < bundles_.size(); ++k) {
    const auto [begin, size] = bundles_[k];
    for (std::size_t at = begin; at < begin + size; ++at) {
      entries_[at].bin = (subsets[k % 2] >> (k / 2)) & 1U ? a : b;
    }
  }
  for (const Entry& entry : entries_) bins_.add(entry.sample, entry.bin);
}

Divided Repartitioner::divide(std::uint32_t a, std::uint32_t b, const Division& division) {
  list_samples(a, b);
  choose_bundles(a, division);
  const Loads loads = loads_of(a, b);
  Goal goal{.wanted = division.target - loads.kept_cost,
            .min_tokens = loads.tokens - loads.kept_tokens - max_tokens_,
            .max_tokens = max_tokens_ - loads.kept_tokens,
            .tolerance = division.tolerance,
            .rating = std::abs(bins_.load(a) - division.target),
            .shift = form_sums(loads.cost)};
  const SubsetSums& first = half_[0];
  const SubsetSums& second = half_[1];
  const auto cost_of = [&](std::size_t x, std::size_t y) { return first.cost(x) + second.cost(y); };
  // Largest load of a module, for a load of `a` and the encoder's part of it.
  const auto largest = [&](std::int64_t load, std::int64_t part) {
    const std::int64_t other = load - part, backbone = loads.cost - loads.encoder;
    return std::max({part, loads.encoder - part, other, backbone - other});
  };
  Choice best{};
  if (bins_.samples().encoder.empty()) {
    best = search(
        goal, [&](std::size_t x, std::size_t y) { return std::abs(cost_of(x, y) - goal.wanted); });
  } else {
    goal.rating = largest(bins_.load(a), loads.encoder_of_a);
    best = search(goal, [&](std::size_t x, std::size_t y) {
      const std::int64_t part =
          loads.kept_encoder + encoder_[0][first.subset(x)] + encoder_[1][second.subset(y)];
      return largest(loads.kept_cost + cost_of(x, y), part);
    });
  }
  const bool better = best.rating < goal.rating;
  if (better) assign(a, b, best);
  return {better, first.count() + second.count()};
}

}  // namespace flowtrain::packing
