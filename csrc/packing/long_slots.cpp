#include "packing/long_slots.hpp"

#include <algorithm>
#include <array>
#include <cstdlib>
#include <vector>

#include "packing/order.hpp"
#include "packing/share.hpp"

namespace flowtrain::packing {
namespace {

constexpr int kExchanges = 4;        // Of one bin, each from what the last one left.
constexpr std::size_t kLeaving = 5;  // Samples of a bin that may leave it, at most two at once.
constexpr std::size_t kNear = 4;     // Samples looked at on either side of what is wished for.
constexpr std::uint64_t kWorkOfLook = 12;  // In sums.
constexpr std::uint32_t kPartners = 1;

/// Samples of the other bins by descending value, with the values side by side.
struct Sorted {
  Sorted(const Bins& bins, std::uint32_t long_bins, std::span<const std::int64_t> of,
         std::span<const std::uint32_t> order) {
    samples.reserve(order.size());
    values.reserve(order.size());
    for (const std::uint32_t i : order) {
      const std::uint32_t bin = bins.bin_of()[i];
      if (bin == kNone || bin < long_bins) continue;
      samples.push_back(i);
      values.push_back(of[i]);
    }
  }

  /// First place whose value is at most `limit`.
  std::size_t first_at_most(std::int64_t limit) const {
    std::size_t at = 0;
    for (std::size_t count = values.size(); count > 0;) {
      const std::size_t half = (count + 1) / 2;
      // Without a branch, since none could be foretold.
      at += half & -static_cast<std::size_t>(values[at + half - 1] > limit);
      count -= half;
    }
    return at;
  }

  std::vector<std::uint32_t> samples;
  std::vector<std::int64_t> values;
};

/// Up to two samples leave a bin and one comes, which brings it nearest to its target.
struct Exchange {
  std::array<std::uint32_t, 2> out{kNone, kNone};
  std::uint32_t in = kNone;
  std::int64_t miss = 0;
};

class Filler {
 public:
  Filler(Bins& bins, std::span<const std::uint32_t> order, std::uint32_t long_bins,
         std::int64_t token_cap)
      : bins_(bins),
        samples_(bins.samples()),
        by_cost_(bins, long_bins, samples_.cost, order),
        by_tokens_(bins, long_bins, samples_.tokens, order_descending(samples_.tokens)),
        long_bins_(long_bins),
        token_cap_(token_cap),
        partner_(long_bins),
        sharer_(bins, token_cap) {}

  Exchange best(std::uint32_t bin, std::int64_t target, std::int64_t tolerance) {
    leaving_.clear();
    bins_.each(bin, [&](std::uint32_t i) {
      if (leaving_.size() < kLeaving) leaving_.push_back(i);
    });
    const std::int64_t wanted = target - bins_.load(bin);
    Exchange best{.miss = std::abs(wanted)};
    look(bin, {kNone, kNone}, wanted, best);
    for (std::size_t i = 0; i < leaving_.size() && best.miss > tolerance; ++i) {
      const std::int64_t cost = wanted + samples_.cost[leaving_[i]];
      look(bin, {leaving_[i], kNone}, cost, best);
      for (std::size_t j = 0; j < i; ++j) {
        look(bin, {leaving_[i], leaving_[j]}, cost + samples_.cost[leaving_[j]], best);
      }
    }
    return best;
  }

  void apply(std::uint32_t bin, const Exchange& exchange) {
    const std::uint32_t other = bins_.bin_of()[exchange.in];
    bins_.remove(exchange.in);
    for (const std::uint32_t out : exchange.out) {
      if (out == kNone) continue;
      bins_.remove(out);
      bins_.add(out, other);
    }
    bins_.add(exchange.in, bin);
  }

  std::uint64_t work() const { return work_; }

  void share(std::uint32_t bin, std::int64_t target, std::int64_t tolerance) {
    for (std::uint32_t turn = 0; turn < kPartners; ++turn) {
      if (std::abs(bins_.load(bin) - target) <= tolerance) return;
      work_ += sharer_.share(bin, partner_, {target, 12, turn, tolerance}).sums;
      if (++partner_ == bins_.count()) partner_ = long_bins_;
    }
  }

 private:
  /// Looks for the sample to come where `out` leaves and `cost` is wished for: near that cost or,
  /// if what costs so much is too long, near the length that is left.
  void look(std::uint32_t bin, const std::array<std::uint32_t, 2>& out, std::int64_t cost,
            Exchange& best) {
    if (by_cost_.values.empty() || cost <= by_cost_.values.back() - best.miss ||
        cost >= by_cost_.values.front() + best.miss) {
      return;
    }
    work_ += kWorkOfLook;
    std::int64_t leaving = 0;
    for (const std::uint32_t i : out) leaving += i == kNone ? 0 : samples_.tokens[i];
    const std::int64_t room = token_cap_ - bins_.tokens(bin) + leaving;
    const auto fits = [&](std::uint32_t in) {
      const std::uint32_t other = bins_.bin_of()[in];
      return samples_.tokens[in] <= room && other >= long_bins_ &&
             bins_.tokens(other) - samples_.tokens[in] + leaving <= token_cap_;
    };
    const std::size_t at = by_cost_.first_at_most(cost);
    const std::size_t count = by_cost_.samples.size();
    if (at == count || samples_.tokens[by_cost_.samples[at]] <= room) {
      for (std::size_t k = at; k < std::min(count, at + kNear); ++k) {
        const std::int64_t miss = cost - by_cost_.values[k];
        if (miss >= best.miss) break;
        if (fits(by_cost_.samples[k])) best = {out, by_cost_.samples[k], miss};
      }
      for (std::size_t k = at; k > at - std::min(at, kNear); --k) {
        const std::int64_t miss = by_cost_.values[k - 1] - cost;
        if (miss >= best.miss) break;
        if (fits(by_cost_.samples[k - 1])) best = {out, by_cost_.samples[k - 1], miss};
      }
      return;
    }
    const std::size_t from = by_tokens_.first_at_most(room);
    for (std::size_t k = from; k < std::min(count, from + kNear); ++k) {
      const std::uint32_t in = by_tokens_.samples[k];
      const std::int64_t miss = std::abs(samples_.cost[in] - cost);
      if (miss < best.miss && fits(in)) best = {out, in, miss};
    }
  }

  Bins& bins_;
  const Samples& samples_;
  Sorted by_cost_;
  Sorted by_tokens_;
  std::vector<std::uint32_t> leaving_;
  std::uint32_t long_bins_;
  std::int64_t token_cap_;
  std::uint32_t partner_;
  Sharer sharer_;
  std::uint64_t work_ = 0;
};

}  // namespace

std::uint64_t fill_long_bins(Bins& bins, std::span<const std::uint32_t> order,
                             std::span<const std::int64_t> targets, std::uint32_t long_bins,
                             std::int64_t token_cap, std::int64_t tolerance) {
  if (long_bins == bins.count()) return 0;
  Filler filler(bins, order, long_bins, token_cap);
  for (std::uint32_t b = 0; b < long_bins; ++b) {
    for (int k = 0; k < kExchanges; ++k) {
      if (std::abs(bins.load(b) - targets[b]) <= tolerance) break;
      const Exchange exchange = filler.best(b, targets[b], tolerance);
      if (exchange.in == kNone) break;
      filler.apply(b, exchange);
    }
    filler.share(b, targets[b], tolerance);
  }
  return filler.work();
}

}  // namespace flowtrain::packing
