#include "packing/dense_fill.hpp"

#include <algorithm>
#include <utility>

#include "packing/order.hpp"
#include "packing/place.hpp"

namespace flowtrain::packing {
namespace {

constexpr int kTries = 8;                // Bins that are asked for room for one sample.
constexpr std::int64_t kFullPart = 256;  // Of the cap; with less room a bin is not asked again.

/// Long bins that are below their targets and have room, the one that misses most on top.
class Wanting {
 public:
  Wanting(Bins& bins, std::span<const std::int64_t> targets, std::uint32_t long_bins,
          std::int64_t token_cap)
      : bins_(bins), token_cap_(token_cap) {
    for (std::uint32_t b = 0; b < long_bins; ++b) heap_.emplace_back(targets[b] - bins.load(b), b);
    std::make_heap(heap_.begin(), heap_.end());
  }

  /// Puts a sample into the first of a few bins that has room for it, if it misses so much.
  void offer(std::uint32_t sample) {
    const std::int64_t tokens = bins_.samples().tokens[sample];
    const std::int64_t cost = bins_.samples().cost[sample];
    asked_.clear();
    for (int tries = 0; tries < kTries && !heap_.empty() && heap_.front().first >= cost; ++tries) {
      std::pop_heap(heap_.begin(), heap_.end());
      auto [missing, bin] = heap_.back();
      heap_.pop_back();
      const std::int64_t room = token_cap_ - bins_.tokens(bin);
      const bool fits = tokens <= room;
      if (fits) {
        bins_.add(sample, bin);
        missing -= cost;
      }
      if (room - (fits ? tokens : 0) >= token_cap_ / kFullPart) asked_.emplace_back(missing, bin);
      if (fits) break;
    }
    for (const auto& bin : asked_) {
      heap_.push_back(bin);
      std::push_heap(heap_.begin(), heap_.end());
    }
  }

 private:
  using Entry = std::pair<std::int64_t, std::uint32_t>;  // What it misses, and which.

  Bins& bins_;
  std::int64_t token_cap_;
  std::vector<Entry> heap_;
  std::vector<Entry> asked_;
};

}  // namespace

Bins fill_densely(const Samples& samples, std::span<const std::uint32_t> order,
                  std::vector<std::int64_t>& targets, std::uint32_t long_bins,
                  std::int64_t token_cap, std::size_t* unplaced) {
  Bins bins(samples, static_cast<std::uint32_t>(targets.size()));
  // What makes slots long comes first, whatever its density.
  std::size_t heads = 0;
  while (heads < order.size() && samples.cost[order[heads]] > targets.back()) ++heads;
  *unplaced = place(bins, order.first(heads), targets, token_cap);
  Wanting wanting(bins, targets, long_bins, token_cap);
  for (const std::uint32_t i : order_by_density(samples, order.subspan(heads))) wanting.offer(i);
  std::vector<std::uint32_t> rest;
  std::int64_t left = 0;
  for (const std::uint32_t i : order.subspan(heads)) {
    if (bins.bin_of()[i] != kNone) continue;
    rest.push_back(i);
    left += samples.cost[i];
  }
  const std::uint32_t others = bins.count() - long_bins;
  for (std::uint32_t b = long_bins; b < bins.count(); ++b) left += bins.load(b);
  if (others > 0) std::fill(targets.begin() + long_bins, targets.end(), left / others);
  *unplaced += place(bins, rest, targets, token_cap);
  return bins;
}

}  // namespace flowtrain::packing
