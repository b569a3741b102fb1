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

__extension__ using Wide = __int128;

constexpr std::size_t kTries = 64;       // Prices that are tried, ...
constexpr std::size_t kLooks = 1 << 18;  // ... and samples that are looked at for this.
constexpr std::size_t kPerHalf = 3;      // Looks at one above half the cap, as these are sorted.
constexpr std::size_t kCoarse = 16;      // A search starts with steps of one part in so many, ...
constexpr std::size_t kFine = 1024;      // ... and ends with these.

/// Counts of long samples: of those above half the cap, a bin holds one; of those above a third, it
/// holds two or one above two thirds, which therefore counts twice.
constexpr std::array<std::int64_t, 2> kMostCounted{1, 2};

/// What room costs: a token as much as in the sample at place `like` by descending density, nothing
/// past the last, and each of what is counted `piece`.
struct Prices {
  std::size_t like = 0;
  std::int64_t piece = 0;
  std::size_t count = 0;
};

/// What searches for prices may still do.
struct Budget {
  std::size_t tries = kTries;
  std::size_t looks = kLooks;  ///< At samples.
};

/// Orders values so that each group of so many holds none that is less than one of the next.
void group_descending(std::span<Wide> values, std::size_t size) {
  if (values.size() <= size) return;
  const std::size_t middle = (values.size() / size + 1) / 2 * size;
  const auto at = values.begin() + static_cast<std::ptrdiff_t>(middle);
  std::nth_element(values.begin(), at, values.end(), std::greater<>());
  group_descending(values.first(middle), size);
  group_descending(values.subspan(middle), size);
}

/// The slots that samples above half the cap make long, and what they carry at most.
class LongSlots {
 public:
  /// `order` is samples by descending cost, and not empty.
  LongSlots(const Samples& samples, std::span<const std::uint32_t> order, const Grid& grid)
      : ranks_(grid.ranks),
        total_(std::accumulate(samples.cost.begin(), samples.cost.end(), std::int64_t{0})),
        lengths_{samples.cost[order[0]]} {
    const std::int64_t tokens =
        std::accumulate(samples.tokens.begin(), samples.tokens.end(), std::int64_t{0});
    token_cap_ = std::min(grid.token_cap, tokens);
    for (const std::uint32_t i : order) {
      if (samples.tokens[i] <= token_cap_ / 2) continue;
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
    // What is multiplied in `bound` fits.
    if (bits(total_) + bits(token_cap_) + bits(grid.bins()) > 124) helping_.clear();
    if (!helping_.empty()) sort_by_density(samples, order);
  }

  std::int64_t even() const { return divide_up(total_, ranks_); }
  std::int64_t longest() const { return lengths_[0]; }
  /// How many slots are long together; others carry their share of the total, so they say nothing.
  const std::vector<std::size_t>& helping() const { return helping_; }

  /// Prices of the densest samples that fill q slots.
  Prices filled(std::size_t q) const {
    const Wide room = Wide{token_cap_} * ranks_ * static_cast<std::int64_t>(q);
    Wide used = 0;
    std::size_t k = 0;
    while (k < densest_.size() && used + densest_[k].tokens <= room) used += densest_[k++].tokens;
    return {.like = k};
  }

  /// Least sum over all slots, where q of them carry what prices tell: a bin holds no more than
  /// what its room costs and its samples gain, what they cost above their price.
  std::int64_t bound(std::size_t q, const Prices& prices) const {
    const bool free = prices.like == densest_.size();
    const std::int64_t price = free ? 0 : densest_[prices.like].cost;
    const std::int64_t per = free ? 1 : densest_[prices.like].tokens;
    const Wide piece = Wide{prices.piece} * per;
    const Wide room = Wide{price} * token_cap_ + piece * kMostCounted[prices.count];
    const std::array<Wide, 3> pieces{0, piece, 2 * piece};
    // Nor does it hold more than its slot lasts, so that no gain counts beyond the rest of it.
    std::vector<Wide> rest(q);
    Wide carried = 0, sum = 0;
    for (std::size_t j = 0; j < q; ++j) {
      sum += lengths_[j];
      rest[j] = std::max<Wide>(0, Wide{lengths_[j]} * per - room);
      carried += ranks_ * std::min<Wide>(Wide{lengths_[j]} * per, room);
    }
    Wide gained = 0;  // All of it.
    std::int64_t beyond = 0;
    std::vector<Wide> of_halves;
    for (std::size_t k = 0; k < prices.like; ++k) {  // The others gain nothing.
      const Item& item = densest_[k];
      const Wide gain =
          Wide{item.cost} * per - Wide{price} * item.tokens - pieces[item.counted[prices.count]];
      if (gain <= 0) continue;
      beyond += gain > rest[0];
      if (item.half) {
        of_halves.push_back(gain);
      } else {
        gained += gain;
        carried += std::min(gain, rest[0]);
      }
    }
    // A bin holds one of these.
    group_descending(of_halves, static_cast<std::size_t>(ranks_));
    of_halves.resize(std::min(of_halves.size(), q * ranks_));
    for (std::size_t k = 0; k < of_halves.size(); ++k) {
      gained += of_halves[k];
      carried += std::min(of_halves[k], rest[k / ranks_]);
    }
    // Were more bins than a slot has short of length, it could be worth its while to last longer.
    if (beyond > ranks_) carried = gained + room * ranks_ * static_cast<std::int64_t>(q);
    const Wide others = std::max<Wide>(0, Wide{total_} * per - carried);
    const Wide each = Wide{per} * ranks_;
    return static_cast<std::int64_t>(sum + (others + each - 1) / each);
  }

  /// The best that a search finds, which begins with the prices of the densest samples, and ends
  /// when it has found enough or has looked at so many samples.
  std::int64_t search(std::size_t q, std::int64_t enough, Budget& budget) const {
    Prices prices = filled(q);
    std::int64_t best = bound(q, prices);
    const auto towards = [&](std::int64_t likes, std::int64_t piece) {
      Prices at = prices;
      at.like = static_cast<std::size_t>(
          std::clamp<std::int64_t>(static_cast<std::int64_t>(at.like) + likes, weightless_,
                                   static_cast<std::int64_t>(densest_.size())));
      at.piece = std::clamp<std::int64_t>(at.piece + piece, 0, longest());
      const std::size_t looks = at.like + kPerHalf * std::min(at.like, halves_);
      if (best >= enough || budget.tries == 0 || budget.looks < looks) return false;
      if (at.like == prices.like && at.piece == prices.piece) return false;
      --budget.tries;
      budget.looks -= looks;
      const std::int64_t found = bound(q, at);
      if (found <= best) return false;
      best = found;
      prices = at;
      return true;
    };
    for (std::size_t count = 0; count < kMostCounted.size(); ++count) {
      if (prices.piece == 0) prices.count = count;
      for (std::size_t part = kCoarse; part <= kFine; part *= 2) {
        const auto likes = std::max<std::int64_t>(1, densest_.size() / part);
        const auto piece = std::max<std::int64_t>(1, longest() / static_cast<std::int64_t>(part));
        while (towards(likes, 0) || towards(-likes, 0) || towards(0, piece) || towards(0, -piece)) {
        }
      }
    }
    return best;
  }

 private:
  static int bits(std::int64_t value) { return std::bit_width(static_cast<std::uint64_t>(value)); }

  struct Item {
    std::int64_t cost;
    std::int64_t tokens;
    bool half = false;
    std::array<std::uint8_t, 2> counted{};
  };

  void sort_by_density(const Samples& samples, std::span<const std::uint32_t> order) {
    densest_.reserve(order.size());
    for (const std::uint32_t i : order) {
      if (samples.tokens[i] == 0 && samples.cost[i] > 0) add({samples.cost[i], 0});
    }
    weightless_ = static_cast<std::int64_t>(densest_.size());
    for (const std::uint32_t i : order_by_density(samples, order)) {
      if (samples.tokens[i] > 0 && samples.cost[i] > 0) add({samples.cost[i], samples.tokens[i]});
    }
  }

  void add(Item item) {
    const bool third = item.tokens > token_cap_ / 3;
    const bool most = item.tokens > token_cap_ - divide_up(token_cap_, 3);
    item.half = item.tokens > token_cap_ / 2;
    item.counted = {static_cast<std::uint8_t>(item.half), static_cast<std::uint8_t>(third + most)};
    densest_.push_back(item);
  }

  std::int64_t ranks_;
  std::int64_t token_cap_;  ///< Or all tokens, if they are fewer.
  std::int64_t total_;
  std::vector<std::int64_t> lengths_;  ///< Longest first.
  std::size_t halves_ = 0;             ///< Samples above half the cap.
  std::vector<std::size_t> helping_;
  std::vector<Item> densest_;    ///< Samples by descending cost per token.
  std::int64_t weightless_ = 0;  ///< How many of them have no tokens.
};

}  // namespace

std::int64_t lockstep_bound(const Samples& samples, std::span<const std::uint32_t> order,
                            const Grid& grid, std::int64_t enough) {
  if (order.empty()) return 0;
  const LongSlots slots(samples, order, grid);
  std::int64_t best = std::max(slots.even(), slots.longest());
  std::vector<std::pair<std::int64_t, std::size_t>> quick;
  for (const std::size_t q : slots.helping())
    quick.emplace_back(slots.bound(q, slots.filled(q)), q);
  std::stable_sort(quick.begin(), quick.end(), std::greater<>());
  if (!quick.empty()) best = std::max(best, quick.front().first);
  Budget budget;
  for (const auto& [found, q] : quick) {
    if (best >= enough) break;
    best = std::max(best, slots.search(q, enough, budget));
  }
  return best;
}

}  // namespace flowtrain::packing
