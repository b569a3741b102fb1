#include <algorithm>
#include <array>
#include <bit>
#include <functional>
#include <numeric>
#include <utility>
#include <vector>

#include "base/math.hpp"
#include "packing/bound.hpp"
#include "packing/order.hpp"

namespace flowtrain::packing {
namespace {

constexpr std::size_t kMaxTries = 160;       // Prices that are tried.
constexpr std::size_t kMaxVisits = 1 << 18;  // Samples that are visited, in all tries ...
constexpr std::size_t kMaxVisitsEach = 64;   // ... and as a multiple of their number.
constexpr std::size_t kMaxLongSlots = 64;    // Numbers of long slots that are tried.
constexpr std::size_t kVisitsPerHalf = 3;    // Of a sample above half the cap, which is sorted.
constexpr std::int64_t kFirstParts = 8;      // Steps of a search are one part in so many at first,
constexpr std::int64_t kLastEdgeParts = 64;  // ... where edges are tried for the last time,
constexpr std::int64_t kLastParts = 1024;    // ... and at the end.

/// A measure of samples other than their tokens, of which no bin holds more than the cap either.
///
/// With an edge of so many of kParts parts of the cap, up to half of it, a sample longer than the
/// cap less the edge counts as the whole cap, and one shorter than the edge as nothing: a bin with
/// the former has room only for the latter.
///
/// Source: Fekete and Schepers (2001), dual feasible functions.
class Measure {
 public:
  static constexpr int kParts = 20;

  Measure(int edge, std::int64_t max_tokens)
      : low_(static_cast<std::int64_t>(Wide{max_tokens} * edge / kParts)),
        max_tokens_(max_tokens) {}

  std::int64_t operator()(std::int64_t tokens) const {
    if (tokens < low_) return 0;
    return tokens > max_tokens_ - low_ ? max_tokens_ : tokens;
  }

 private:
  std::int64_t low_, max_tokens_;
};

/// Prices of room, by tokens and by a measure.
struct Prices {
  std::size_t denser = 0;      ///< Samples denser than a token's price, the next one's density.
  std::int64_t whole_cap = 0;  ///< Price of the whole cap by the measure.
  int edge = 1;                ///< Of the measure.

  bool operator==(const Prices&) const = default;
};

constexpr std::array kEdges{10, 8, 6, 4, 2};  // That searches begin with.

/// Remaining effort of searches for prices.
struct Budget {
  std::size_t tries = kMaxTries;
  std::size_t visits;  ///< Of samples.
};

/// Orders values such that no value of a group of `size` is lower than one of the next group.
void group_descending(std::span<Wide> values, std::size_t size) {
  if (values.size() <= size) return;
  const std::size_t middle = (values.size() / size + 1) / 2 * size;
  const auto at = values.begin() + static_cast<std::ptrdiff_t>(middle);
  std::nth_element(values.begin(), at, values.end(), std::greater<>());
  group_descending(values.first(middle), size);
  group_descending(values.subspan(middle), size);
}

/// The slots that samples above half the cap make long, and an upper bound of what they carry.
class LongSlots {
 public:
  /// `order` is samples by descending cost, and not empty.
  LongSlots(const Samples& samples, Order order, const Grid& grid)
      : ranks_(grid.ranks), total_(sum(samples.cost)), lengths_{samples.cost[order[0]]} {
    max_tokens_ = std::clamp<std::int64_t>(packing::sum(samples.tokens), 1, grid.max_tokens);
    for (const std::uint32_t i : order) {
      if (samples.tokens[i] <= max_tokens_ / 2) continue;
      if (halves_ > 0 && halves_ % grid.ranks == 0) lengths_.push_back(samples.cost[i]);
      ++halves_;
    }
    if (lengths_.size() > grid.slots) lengths_.resize(grid.slots);  // Nothing fits then.
    std::int64_t sum = 0;
    for (std::size_t q = 1; q <= lengths_.size(); ++q) {
      sum += lengths_[q - 1];
      if (Wide{sum} * grid.slots > Wide{even()} * static_cast<std::int64_t>(q))
        helping_.push_back(q);
    }
    // Each number gives a bound, and neighbours similar ones; all would take slots x samples time.
    const std::size_t all = helping_.size(), some = std::min(all, kMaxLongSlots);
    const std::size_t apart = std::max<std::size_t>(1, some - 1);
    for (std::size_t k = 0; k < some; ++k) helping_[k] = helping_[k * (all - 1) / apart];
    helping_.resize(some);
    // What is multiplied in `bound` fits.
    if (bits(total_) + bits(max_tokens_) + bits(grid.bins()) > 124) helping_.clear();
    if (!helping_.empty()) sort_by_density(samples, order);
  }

  std::int64_t even() const { return divide_up(total_, ranks_); }
  std::int64_t longest() const { return lengths_[0]; }
  /// How many slots are long together; others carry their share of the total, so they say nothing.
  /// Of more than kMaxLongSlots such numbers only kMaxLongSlots, the first and the last among them.
  const std::vector<std::size_t>& helping() const { return helping_; }

  /// Prices of the densest samples that fill q slots.
  Prices filled(std::size_t q) const {
    const Wide room = Wide{max_tokens_} * ranks_ * static_cast<std::int64_t>(q);
    Wide used = 0;
    std::size_t k = 0;
    while (k < densest_.size() && used + densest_[k].tokens <= room) used += densest_[k++].tokens;
    return {.denser = k};
  }

  /// Minimum sum over all slots if q of them carry at most what the prices allow: a bin holds no
  /// more than what its room costs and its samples gain, what they cost above their price.
  std::int64_t bound(std::size_t q, const Prices& prices) const {
    const bool free = prices.denser == densest_.size();
    const std::int64_t price = free ? 0 : densest_[prices.denser].cost;
    const std::int64_t per = free ? 1 : densest_[prices.denser].tokens;
    const Wide by_measure = Wide{prices.whole_cap} * per / max_tokens_;
    const Wide room = (price + by_measure) * max_tokens_;
    const Measure measure(prices.edge, max_tokens_);
    // Nor does it hold more than its slot lasts, which limits its gains.
    std::vector<Wide> max_gain(q);
    Wide carried = 0, sum = 0;
    for (std::size_t j = 0; j < q; ++j) {
      sum += lengths_[j];
      max_gain[j] = std::max<Wide>(0, Wide{lengths_[j]} * per - room);
      carried += ranks_ * std::min<Wide>(Wide{lengths_[j]} * per, room);
    }
    Wide gained = 0;              // Without that limit.
    std::int64_t over_limit = 0;  // Samples that gain more than any bin may.
    Vector<Wide> of_halves;
    for (std::size_t k = 0; k < prices.denser; ++k) {  // The others gain nothing.
      const Item& item = densest_[k];
      const Wide gain =
          Wide{item.cost} * per - Wide{price} * item.tokens - by_measure * measure(item.tokens);
      if (gain <= 0) continue;
      over_limit += gain > max_gain[0];
      if (item.half) {
        of_halves.push_back(gain);
      } else {
        gained += gain;
        carried += std::min(gain, max_gain[0]);
      }
    }
    // A bin holds one of these.
    group_descending(of_halves, static_cast<std::size_t>(ranks_));
    of_halves.resize(std::min(of_halves.size(), q * ranks_));
    for (std::size_t k = 0; k < of_halves.size(); ++k) {
      gained += of_halves[k];
      carried += std::min(of_halves[k], max_gain[k / ranks_]);
    }
    // With more such samples than bins in a slot, longer slots could carry more: drop the limit.
    if (over_limit > ranks_) carried = gained + room * ranks_ * static_cast<std::int64_t>(q);
    const Wide others = std::max<Wide>(0, Wide{total_} * per - carried);
    const Wide each = Wide{per} * ranks_;
    return static_cast<std::int64_t>(sum + (others + each - 1) / each);
  }

  /// The best that a search finds, which begins with the prices of the densest samples, and ends
  /// when it has found enough or has looked at so many samples.
  std::int64_t search(std::size_t q, std::int64_t enough, Budget& budget) const {
    Prices prices = filled(q);
    std::int64_t best = bound(q, prices);
    const auto look = [&](const Prices& at) {
      const std::size_t visits = at.denser + kVisitsPerHalf * std::min(at.denser, halves_);
      if (best >= enough || budget.tries == 0 || budget.visits < visits) return false;
      --budget.tries;
      budget.visits -= visits;
      const std::int64_t found = bound(q, at);
      if (found <= best) return false;
      best = found;
      prices = at;
      return true;
    };
    const auto size = static_cast<std::int64_t>(densest_.size());
    const auto change = [&](std::int64_t denser, std::int64_t whole_cap, int edge) {
      Prices at = prices;
      at.denser = static_cast<std::size_t>(
          std::clamp(static_cast<std::int64_t>(at.denser) + denser, weightless_, size));
      at.whole_cap = std::clamp<std::int64_t>(at.whole_cap + whole_cap, 0, longest());
      at.edge = std::clamp(at.edge + edge, 1, Measure::kParts / 2);
      return at != prices && look(at);
    };
    for (std::int64_t part = kFirstParts; part <= kLastParts; part *= 2) {
      const auto samples = std::max<std::int64_t>(1, size / part);
      const auto price = std::max<std::int64_t>(1, longest() / part);
      for (const int edge : kEdges) {
        if (prices.whole_cap > 0 || part > kLastEdgeParts) break;
        look({.denser = prices.denser, .whole_cap = price, .edge = edge});
      }
      while (change(samples, 0, 0) || change(-samples, 0, 0) ||
             (prices.whole_cap > 0 && (change(0, price, 0) || change(0, -price, 0) ||
                                       change(0, 0, 1) || change(0, 0, -1)))) {
      }
    }
    return best;
  }

 private:
  static int bits(std::int64_t value) { return std::bit_width(static_cast<std::uint64_t>(value)); }

  struct Item {
    std::int64_t cost;
    std::int64_t tokens;
    bool half;  ///< Whether it is above half the cap.
  };

  void sort_by_density(const Samples& samples, Order order) {
    densest_.reserve(order.size());
    for (const std::uint32_t i : order) {
      if (samples.tokens[i] > 0 || samples.cost[i] == 0) continue;
      densest_.push_back({samples.cost[i], 0, false});
    }
    weightless_ = static_cast<std::int64_t>(densest_.size());
    for (const std::uint32_t i : order_by_density(samples, order)) {
      const std::int64_t tokens = samples.tokens[i];
      if (tokens == 0 || samples.cost[i] == 0) continue;
      densest_.push_back({samples.cost[i], tokens, tokens > max_tokens_ / 2});
    }
  }

  std::int64_t ranks_;
  std::int64_t max_tokens_;  ///< Or all tokens, if they are fewer.
  std::int64_t total_;
  std::vector<std::int64_t> lengths_;  ///< Longest first.
  std::size_t halves_ = 0;             ///< Samples above half the cap.
  std::vector<std::size_t> helping_;
  Vector<Item> densest_;         ///< Samples by descending cost per token.
  std::int64_t weightless_ = 0;  ///< How many of them have no tokens.
};

}  // namespace

std::int64_t lockstep_bound(const Samples& samples, Order order, const Grid& grid,
                            std::int64_t enough) {
  if (order.empty()) return 0;
  const LongSlots slots(samples, order, grid);
  std::int64_t best = std::max(slots.even(), slots.longest());
  std::vector<std::pair<std::int64_t, std::size_t>> quick;
  for (const std::size_t q : slots.helping())
    quick.emplace_back(slots.bound(q, slots.filled(q)), q);
  std::stable_sort(quick.begin(), quick.end(), std::greater<>());
  if (!quick.empty()) best = std::max(best, quick.front().first);
  Budget budget{.visits = std::min(kMaxVisits, kMaxVisitsEach * samples.size())};
  for (const auto& [found, q] : quick) {
    if (best >= enough) break;
    best = std::max(best, slots.search(q, enough, budget));
  }
  return best;
}

}  // namespace flowtrain::packing
