#include "packing/peel.hpp"

#include <algorithm>
#include <numeric>
#include <utility>

#include "base/math.hpp"
#include "packing/open_slot.hpp"
#include "packing/order.hpp"
#include "packing/place.hpp"

namespace flowtrain::packing {
namespace {

constexpr int kTries = 8;                // Samples of about the same length to choose from.
constexpr int kRaises = 3;               // Of one slot, each to hold one more large sample.
constexpr std::size_t kLooks = 1 << 16;  // At samples and bins, to choose how slots are filled.

/// How a slot is filled.
struct Way {
  std::int64_t length;  ///< Of the slot, if that is more than its largest sample.
  std::int64_t level;   ///< Samples above it come first, by descending cost.
  bool tight;           ///< Whether these go where least room stays, or where most is missing.
};

/// Slots filled so far.
struct Filled {
  Bins bins;
  std::vector<std::int64_t> lengths;
  std::int64_t left;        ///< Cost of the other samples.
  std::size_t next = 0;     ///< No sample before this one of those by descending cost is left, ...
  std::size_t densest = 0;  ///< ... nor before this one of those by descending density.
  std::int64_t longer = 0;  ///< With which the last slot would have held the next largest sample.
};

/// Fills slots, and keeps count of the samples that were looked at.
class Peeler {
 public:
  Peeler(const Samples& samples, std::span<const std::uint32_t> order, const Grid& grid)
      : samples_(samples),
        order_(order),
        by_density_(order_by_density(samples, order)),
        by_tokens_(order_descending(samples.tokens)),
        grid_(grid),
        looks_(kLooks) {}

  Filled start() const {
    const std::int64_t total =
        std::accumulate(samples_.cost.begin(), samples_.cost.end(), std::int64_t{0});
    return {.bins = Bins(samples_, grid_.bins()), .lengths = {}, .left = total};
  }

  /// Whether another slot must be long.
  bool sticks_out(const Filled& filled) const {
    return slots_left(filled) > 0 && largest(filled) > even(filled);
  }

  /// Fills the next slot in the best of several ways.
  void add_best_slot(Filled& filled) {
    Filled best = filled;
    const std::int64_t level = even(filled);
    add_slot(best, {0, level, false});
    const std::int64_t after = slots_left(best) > 0 ? even(best) : level;
    std::int64_t least = looks_ > 0 ? value_in_the_end(best) : 0;
    for (const std::int64_t above : {level, after, after / 2}) {
      for (const bool tight : {false, true}) {
        std::int64_t length = 0;
        for (int raise = 0; raise <= kRaises && length != kNever && looks_ > 0; ++raise) {
          Filled other = filled;
          add_slot(other, {length, above, tight});
          length = other.longer;
          const std::int64_t value = value_in_the_end(other);
          if (value >= least) continue;
          least = value;
          best = std::move(other);
        }
      }
    }
    filled = std::move(best);
  }

 private:
  std::size_t slots_left(const Filled& filled) const { return grid_.slots - filled.lengths.size(); }
  std::int64_t largest(const Filled& filled) const {
    return filled.next < order_.size() ? samples_.cost[order_[filled.next]] : 0;
  }
  std::int64_t even(const Filled& filled) const {
    return filled.left / grid_.ranks / static_cast<std::int64_t>(slots_left(filled));
  }
  void looked(std::size_t samples) { looks_ -= std::min(looks_, samples); }

  void add_slot(Filled& filled, const Way& way) {
    Bins& bins = filled.bins;
    const auto free = [&](std::uint32_t i) { return bins.bin_of()[i] == kNone; };
    const auto first = static_cast<std::uint32_t>(filled.lengths.size()) * grid_.ranks;
    const std::int64_t length = std::max(way.length, largest(filled));
    OpenSlot slot(bins, first, grid_.ranks, length, grid_.token_cap);
    looked(16 * grid_.ranks + bins.count());
    filled.longer = kNever;
    std::size_t k = filled.next;
    for (; k < order_.size() && samples_.cost[order_[k]] > way.level; ++k) {
      const std::uint32_t i = order_[k];
      if (!free(i) || (way.tight ? slot.fit(i) : slot.spread(i))) continue;
      if (filled.longer == kNever) filled.longer = slot.length_to_hold(i);
    }
    looked(k - filled.next);
    // Then the densest, until most do not fit.
    std::size_t misses = 0;
    for (k = filled.densest; k < by_density_.size() && misses < 2 * grid_.ranks; ++k) {
      if (free(by_density_[k])) misses = slot.spread(by_density_[k]) ? 0 : misses + 1;
    }
    looked(k - filled.densest);
    top_up(bins, slot, first);
    std::int64_t longest = 0;
    for (std::uint32_t b = first; b < first + grid_.ranks; ++b) {
      longest = std::max(longest, bins.load(b));
      filled.left -= bins.load(b);
    }
    filled.lengths.push_back(longest);
    while (filled.next < order_.size() && !free(order_[filled.next])) ++filled.next;
    auto& densest = filled.densest;
    while (densest < by_density_.size() && !free(by_density_[densest])) ++densest;
  }

  /// Fills each bin with what is longest of what fits; of a few such samples the costliest.
  void top_up(Bins& bins, const OpenSlot& slot, std::uint32_t first) {
    for (std::uint32_t b = first; b < first + grid_.ranks; ++b) {
      for (std::size_t from = 0; !slot.full(b);) {
        const std::int64_t room = slot.room(b);
        const auto at = std::partition_point(
            by_tokens_.begin() + static_cast<std::ptrdiff_t>(from), by_tokens_.end(),
            [&](std::uint32_t i) { return samples_.tokens[i] > room; });
        from = static_cast<std::size_t>(at - by_tokens_.begin());
        const std::uint32_t best = costliest(bins, from, slot.missing(b));
        if (best == kNone) break;
        bins.add(best, b);
      }
    }
  }

  /// Of the next few samples left by descending tokens that cost no more than so much.
  std::uint32_t costliest(const Bins& bins, std::size_t from, std::int64_t most) {
    std::uint32_t best = kNone;
    int tries = 0;
    std::size_t k = from;
    for (; k < by_tokens_.size() && tries < kTries; ++k) {
      const std::uint32_t i = by_tokens_[k];
      if (bins.bin_of()[i] != kNone) continue;
      ++tries;
      const std::int64_t cost = samples_.cost[i];
      if (cost <= most && (best == kNone || cost > samples_.cost[best])) best = i;
    }
    looked(k - from);
    return best;
  }

  /// Sum over slots, with all that have to be long, if the samples left then share the others
  /// evenly.
  std::int64_t value_in_the_end(Filled filled) {
    while (sticks_out(filled)) add_slot(filled);
    const auto& lengths = filled.lengths;
    return std::accumulate(lengths.begin(), lengths.end(), std::int64_t{0}) +
           divide_up(filled.left, grid_.ranks);
  }

  /// A slot that holds what would stick out of those after it, too.
  void add_slot(Filled& filled) {
    Filled before = filled;
    add_slot(filled, {0, even(filled), false});
    if (!sticks_out(filled)) return;
    const std::int64_t after = even(filled);
    filled = std::move(before);
    add_slot(filled, {0, after, true});
  }

  const Samples& samples_;
  std::span<const std::uint32_t> order_;
  std::vector<std::uint32_t> by_density_;
  std::vector<std::uint32_t> by_tokens_;
  const Grid& grid_;
  std::size_t looks_;
};

}  // namespace

Peeled peel(const Samples& samples, std::span<const std::uint32_t> order, const Grid& grid) {
  Peeler peeler(samples, order, grid);
  Filled filled = peeler.start();
  while (peeler.sticks_out(filled)) peeler.add_best_slot(filled);
  Peeled out{.bins = std::move(filled.bins), .targets = {}};
  for (const std::int64_t length : filled.lengths) {
    out.targets.insert(out.targets.end(), grid.ranks, length);
  }
  out.long_bins = static_cast<std::uint32_t>(out.targets.size());
  const std::uint32_t others = grid.bins() - out.long_bins;
  if (others > 0) out.targets.resize(grid.bins(), filled.left / others);
  std::vector<std::uint32_t> rest;
  for (const std::uint32_t i : order) {
    if (out.bins.bin_of()[i] == kNone) rest.push_back(i);
  }
  out.unplaced = place(out.bins, rest, out.targets, grid.token_cap);
  return out;
}

}  // namespace flowtrain::packing
