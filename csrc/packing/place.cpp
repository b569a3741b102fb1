#include "packing/place.hpp"

#include <algorithm>
#include <bit>
#include <set>
#include <utility>
#include <vector>

namespace flowtrain::packing {
namespace {

struct Open {
  std::int64_t missing;  ///< Target minus load.
  std::uint32_t bin;

  bool before(const Open& other) const {
    // Without a branch, since none could be foretold.
    return (missing > other.missing) | ((missing == other.missing) & (bin < other.bin));
  }
};

/// Tournament of the open bins, the one that misses most on top. Siblings are known before the
/// winner below them is, so a level costs one comparison.
class OpenBins {
 public:
  OpenBins(const Bins& bins, std::span<const std::int64_t> targets)
      : leaves_(std::bit_ceil(targets.size())), nodes_(2 * leaves_, Open{kClosed, kNone}) {
    for (std::uint32_t b = 0; b < targets.size(); ++b) {
      nodes_[leaves_ + b] = {targets[b] - bins.load(b), b};
    }
    for (std::size_t at = leaves_ - 1; at > 0; --at) {
      const Open &left = nodes_[2 * at], &right = nodes_[2 * at + 1];
      nodes_[at] = right.before(left) ? right : left;
    }
  }

  bool empty() const { return nodes_[1].missing == kClosed; }
  const Open& top() const { return nodes_[1]; }

  void set(std::uint32_t bin, std::int64_t missing) {
    Open best{missing, bin};
    for (std::size_t at = leaves_ + bin; at > 1; at /= 2) {
      nodes_[at] = best;
      const Open& sibling = nodes_[at ^ 1];
      best = sibling.before(best) ? sibling : best;
    }
    nodes_[1] = best;
  }

  void close(std::uint32_t bin) { set(bin, kClosed); }

 private:
  static constexpr std::int64_t kClosed = INT64_MIN;

  std::size_t leaves_;
  std::vector<Open> nodes_;
};

}  // namespace

std::size_t place(Bins& bins, std::span<const std::uint32_t> order,
                  std::span<const std::int64_t> targets, std::int64_t token_cap) {
  const Samples& samples = bins.samples();
  OpenBins open(bins, targets);
  // Bins too full for a sample that asked: by room, to be opened again for a shorter one.
  std::vector<std::pair<std::int64_t, std::uint32_t>> parked;
  std::size_t unplaced = 0;
  for (const std::uint32_t sample : order) {
    const std::int64_t tokens = samples.tokens[sample];
    while (!parked.empty() && parked.front().first >= tokens) {
      const std::uint32_t bin = parked.front().second;
      std::pop_heap(parked.begin(), parked.end());
      parked.pop_back();
      open.set(bin, targets[bin] - bins.load(bin));
    }
    while (!open.empty() && bins.tokens(open.top().bin) + tokens > token_cap) {
      const std::uint32_t bin = open.top().bin;
      open.close(bin);
      parked.emplace_back(token_cap - bins.tokens(bin), bin);
      std::push_heap(parked.begin(), parked.end());
    }
    if (open.empty()) {
      ++unplaced;
      continue;
    }
    const Open top = open.top();
    bins.add(sample, top.bin);
    open.set(top.bin, top.missing - samples.cost[sample]);
  }
  return unplaced;
}

std::size_t place_tightly(Bins& bins, std::span<const std::uint32_t> order,
                          std::int64_t token_cap) {
  const Samples& samples = bins.samples();
  std::set<std::pair<std::int64_t, std::uint32_t>> by_room;
  for (std::uint32_t b = 0; b < bins.count(); ++b) by_room.emplace(token_cap - bins.tokens(b), b);
  std::size_t unplaced = 0;
  for (const std::uint32_t sample : order) {
    if (bins.bin_of()[sample] != kNone) continue;
    const std::int64_t tokens = samples.tokens[sample];
    const auto found = by_room.lower_bound({tokens, 0});
    if (found == by_room.end()) {
      ++unplaced;
      continue;
    }
    const auto [room, bin] = *found;
    by_room.erase(found);
    bins.add(sample, bin);
    by_room.emplace(room - tokens, bin);
  }
  return unplaced;
}

}  // namespace flowtrain::packing
