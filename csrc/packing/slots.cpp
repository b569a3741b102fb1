#include "packing/slots.hpp"

#include <algorithm>
#include <numeric>
#include <optional>
#include <utility>

#include "packing/order.hpp"
#include "packing/place.hpp"

namespace flowtrain::packing {
namespace {

/// Samples in an order; those that have a bin are skipped.
class Unplaced {
 public:
  Unplaced(const Bins& bins, Vector<std::uint32_t> order)
      : bins_(bins), order_(std::move(order)), next_(order_.size()) {
    std::iota(next_.begin(), next_.end(), 1U);
  }

  /// The first place from `at` on whose sample has no bin.
  std::size_t next(std::size_t at) {
    std::size_t end = at;
    while (end < order_.size() && bins_.bin_of()[order_[end]] != kNone) end = next_[end];
    while (at < end) at = std::exchange(next_[at], static_cast<std::uint32_t>(end));
    return end;
  }

  /// The first place whose value does not exceed a limit, if the order is by descending value.
  std::size_t first_at_most(std::span<const std::int64_t> values, std::int64_t limit) const {
    const auto at = std::partition_point(order_.begin(), order_.end(),
                                         [&](std::uint32_t i) { return values[i] > limit; });
    return static_cast<std::size_t>(at - order_.begin());
  }

  std::size_t size() const { return order_.size(); }
  std::uint32_t operator[](std::size_t at) const { return order_[at]; }
  Order order() const { return order_; }

 private:
  const Bins& bins_;
  Vector<std::uint32_t> order_;
  Vector<std::uint32_t> next_;  ///< Of each place: a later one; all between have bins.
};

class Filler {
 public:
  Filler(const Samples& samples, Order order, const Grid& grid, Gather gather)
      : samples_(samples),
        grid_(grid),
        gather_(gather),
        bins_(samples, grid.bins()),
        left_(sum(samples.cost)),
        by_cost_(bins_, {order.begin(), order.end()}) {}

  Slots fill() && {
    while (slots_ < grid_.slots && largest() > even()) add_long_slot();
    const std::uint32_t long_bins = slots_ * grid_.ranks;
    if (slots_ < grid_.slots) targets_.resize(grid_.bins(), even());
    std::size_t unplaced = 0;
    Placer placer(bins_, 0, targets_, grid_.max_tokens);
    for (std::size_t k = by_cost_.next(0); k < by_cost_.size(); k = by_cost_.next(k + 1)) {
      unplaced += !placer.add(by_cost_[k]);
    }
    return {std::move(bins_), std::move(targets_), long_bins, unplaced};
  }

 private:
  std::int64_t largest() {
    const std::size_t k = by_cost_.next(0);
    return k < by_cost_.size() ? samples_.cost[by_cost_[k]] : 0;
  }
  std::int64_t even() const { return left_ / grid_.ranks / (grid_.slots - slots_); }

  void add_long_slot() {
    if (slots_ == 0) {
      by_density_.emplace(bins_, order_by_density(samples_, by_cost_.order()));
      by_tokens_.emplace(bins_, order_descending(samples_.tokens));
    }
    const std::int64_t share = even();
    const std::uint32_t first = slots_++ * grid_.ranks;
    targets_.resize(first + grid_.ranks, largest());
    const std::span targets = std::span(targets_).subspan(first);
    Placer placer(bins_, first, targets, grid_.max_tokens);
    if (gather_ == Gather::kAboveEven) gather_above(share, placer);
    if (gather_ == Gather::kAboveHalf) gather_above(share / 2, placer);
    if (gather_ == Gather::kAbove16Times) gather_above(16 * share, placer);
    if (gather_ != Gather::kBinByBin) gather_densest(placer);
    for (std::uint32_t k = 0; k < grid_.ranks; ++k) {
      while (top_up(first + k, targets[k])) {
      }
      left_ -= bins_.load(first + k);
    }
  }

  void gather_above(std::int64_t level, Placer& placer) {
    for (std::size_t k = by_cost_.next(0); k < by_cost_.size(); k = by_cost_.next(k + 1)) {
      if (samples_.cost[by_cost_[k]] <= level) return;
      placer.add(by_cost_[k], true);
    }
  }

  void gather_densest(Placer& placer) {
    std::uint32_t misses = 0;
    for (std::size_t k = by_density_->next(0); k < by_density_->size() && misses < 2 * grid_.ranks;
         k = by_density_->next(k + 1)) {
      misses = placer.add((*by_density_)[k], true) ? 0 : misses + 1;
    }
  }

  /// Adds the costliest sample that fits or, by the cap, the longest; false if neither does.
  bool top_up(std::uint32_t bin, std::int64_t target) {
    const std::int64_t room = grid_.max_tokens - bins_.tokens(bin);
    const std::int64_t missing = target - bins_.load(bin);
    const auto add_first = [&](Unplaced& samples, std::size_t from) {
      const std::size_t k = samples.next(from);
      if (k == samples.size()) return false;
      const std::uint32_t i = samples[k];
      const bool fits = samples_.tokens[i] <= room && samples_.cost[i] <= missing;
      if (fits) bins_.add(i, bin);
      return fits;
    };
    return add_first(by_cost_, by_cost_.first_at_most(samples_.cost, missing)) ||
           add_first(*by_tokens_, by_tokens_->first_at_most(samples_.tokens, room));
  }

  const Samples& samples_;
  const Grid& grid_;
  Gather gather_;
  Bins bins_;
  std::vector<std::int64_t> targets_;
  std::uint32_t slots_ = 0;  ///< Number of filled slots.
  std::int64_t left_;        ///< Cost of the samples without a bin.
  Unplaced by_cost_;
  std::optional<Unplaced> by_density_, by_tokens_;  ///< Set if there are long slots.
};

}  // namespace

Slots fill_slots(const Samples& samples, Order order, const Grid& grid, Gather gather) {
  return Filler(samples, order, grid, gather).fill();
}

}  // namespace flowtrain::packing
