#include "packing/place.hpp"

#include <algorithm>
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

/// Heap of open bins, the one that misses most on top; four children a node, for the cache.
class OpenBins {
 public:
  explicit OpenBins(std::span<const std::int64_t> targets) {
    heap_.reserve(targets.size());
    for (std::uint32_t b = 0; b < targets.size(); ++b) push({targets[b], b});
  }

  bool empty() const { return heap_.empty(); }
  const Open& top() const { return heap_.front(); }

  void push(Open open) {
    std::size_t at = heap_.size();
    heap_.push_back(open);
    while (at > 0 && open.before(heap_[(at - 1) / 4])) {
      heap_[at] = heap_[(at - 1) / 4];
      at = (at - 1) / 4;
    }
    heap_[at] = open;
  }

  void replace_top(Open open) {
    std::size_t at = 0;
    const std::size_t count = heap_.size();
    for (;;) {
      const std::size_t first = 4 * at + 1;
      if (first >= count) break;
      std::size_t best = first;
      const std::size_t last = std::min(first + 4, count);
      for (std::size_t child = first + 1; child < last; ++child) {
        if (heap_[child].before(heap_[best])) best = child;
      }
      if (!heap_[best].before(open)) break;
      heap_[at] = heap_[best];
      at = best;
    }
    heap_[at] = open;
  }

  void pop() {
    const Open last = heap_.back();
    heap_.pop_back();
    if (!heap_.empty()) replace_top(last);
  }

 private:
  std::vector<Open> heap_;
};

}  // namespace

std::size_t place(Bins& bins, std::span<const std::uint32_t> order,
                  std::span<const std::int64_t> targets, std::int64_t token_cap) {
  const Samples& samples = bins.samples();
  OpenBins open(targets);
  // Bins too full for a sample that asked: by room, to be opened again for a shorter one.
  std::vector<std::pair<std::int64_t, std::uint32_t>> parked;
  std::size_t unplaced = 0;
  for (const std::uint32_t sample : order) {
    const std::int64_t tokens = samples.tokens[sample];
    while (!parked.empty() && parked.front().first >= tokens) {
      const std::uint32_t bin = parked.front().second;
      std::pop_heap(parked.begin(), parked.end());
      parked.pop_back();
      open.push({targets[bin] - bins.load(bin), bin});
    }
    while (!open.empty() && bins.tokens(open.top().bin) + tokens > token_cap) {
      const std::uint32_t bin = open.top().bin;
      open.pop();
      parked.emplace_back(token_cap - bins.tokens(bin), bin);
      std::push_heap(parked.begin(), parked.end());
    }
    if (open.empty()) {
      ++unplaced;
      continue;
    }
    const Open top = open.top();
    bins.add(sample, top.bin);
    open.replace_top({top.missing - samples.cost[sample], top.bin});
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
