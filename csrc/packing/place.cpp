#include "packing/place.hpp"

#include <algorithm>
#include <bit>
#include <numeric>
#include <set>
#include <utility>
#include <vector>

namespace flowtrain::packing {
namespace {

__extension__ using Wide = __int128;

/// Tournament of the open bins, the one that misses most on top, and of those the first. Siblings
/// are known before the winner below them is, so a level costs one comparison.
///
/// What a bin misses and its place make one word, so that words compare as bins do; `Word` has
/// room for both.
template <class Word>
class OpenBins {
 public:
  OpenBins(const Bins& bins, std::span<const std::int64_t> targets)
      : bits_(static_cast<int>(std::bit_width(targets.size() - 1))),
        nodes_(std::size_t{2} << bits_, kClosed) {
    for (std::uint32_t b = 0; b < targets.size(); ++b) {
      nodes_[leaves() + b] = word(b, targets[b] - bins.load(b));
    }
    for (std::size_t at = leaves() - 1; at > 0; --at) {
      nodes_[at] = std::max(nodes_[2 * at], nodes_[2 * at + 1]);
    }
  }

  bool empty() const { return nodes_[1] == kClosed; }
  std::uint32_t top() const {
    return static_cast<std::uint32_t>(leaves() - 1 -
                                      (static_cast<std::size_t>(nodes_[1]) & (leaves() - 1)));
  }
  std::int64_t missing() const { return static_cast<std::int64_t>(nodes_[1] >> bits_); }

  void open(std::uint32_t bin, std::int64_t missing) { set(bin, word(bin, missing)); }
  void close(std::uint32_t bin) { set(bin, kClosed); }

 private:
  static constexpr Word kClosed = static_cast<Word>(1) << (8 * sizeof(Word) - 1);

  std::size_t leaves() const { return std::size_t{1} << bits_; }
  Word word(std::uint32_t bin, std::int64_t missing) const {
    return (Word{missing} << bits_) | static_cast<Word>(leaves() - 1 - bin);
  }
  void set(std::uint32_t bin, Word best) {
    for (std::size_t at = leaves() + bin; at > 1; at /= 2) {
      nodes_[at] = best;
      best = std::max(best, nodes_[at ^ 1]);
    }
    nodes_[1] = best;
  }

  int bits_;
  std::vector<Word> nodes_;
};

template <class Word>
std::size_t place_in(OpenBins<Word> open, Bins& bins, std::span<const std::uint32_t> order,
                     std::span<const std::int64_t> targets, std::int64_t token_cap) {
  const Samples& samples = bins.samples();
  // Bins too full for a sample that asked: by room, to be opened again for a shorter one.
  std::vector<std::pair<std::int64_t, std::uint32_t>> parked;
  std::size_t unplaced = 0;
  for (const std::uint32_t sample : order) {
    const std::int64_t tokens = samples.tokens[sample];
    while (!parked.empty() && parked.front().first >= tokens) {
      const std::uint32_t bin = parked.front().second;
      std::pop_heap(parked.begin(), parked.end());
      parked.pop_back();
      open.open(bin, targets[bin] - bins.load(bin));
    }
    while (!open.empty() && bins.tokens(open.top()) + tokens > token_cap) {
      const std::uint32_t bin = open.top();
      open.close(bin);
      parked.emplace_back(token_cap - bins.tokens(bin), bin);
      std::push_heap(parked.begin(), parked.end());
    }
    if (open.empty()) {
      ++unplaced;
      continue;
    }
    const std::uint32_t bin = open.top();
    bins.add(sample, bin);
    open.open(bin, open.missing() - samples.cost[sample]);
  }
  return unplaced;
}

}  // namespace

std::size_t place(Bins& bins, std::span<const std::uint32_t> order,
                  std::span<const std::int64_t> targets, std::int64_t token_cap) {
  // What a bin misses is at most its target, and at least what is left of it by all samples.
  const auto& cost = bins.samples().cost;
  const auto [low, high] = std::minmax_element(targets.begin(), targets.end());
  const std::int64_t most =
      std::max(*high, std::accumulate(cost.begin(), cost.end(), std::int64_t{0}) - *low);
  const auto bits =
      std::bit_width(static_cast<std::uint64_t>(most)) + std::bit_width(targets.size());
  if (bits < 63)
    return place_in(OpenBins<std::int64_t>(bins, targets), bins, order, targets, token_cap);
  return place_in(OpenBins<Wide>(bins, targets), bins, order, targets, token_cap);
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
