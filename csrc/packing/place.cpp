#include "packing/place.hpp"

#include <algorithm>
#include <bit>

namespace flowtrain::packing {

Placer::Placer(Bins& bins, std::uint32_t first, std::span<const std::int64_t> targets,
               std::int64_t max_tokens)
    : bins_(bins),
      first_(first),
      targets_(targets),
      max_tokens_(max_tokens),
      leaves_(std::bit_ceil(targets.size())),
      nodes_(2 * leaves_, kClosed) {
  for (std::uint32_t b = 0; b < targets.size(); ++b) nodes_[leaves_ + b] = word(b);
  for (std::size_t at = leaves_ - 1; at > 0; --at) {
    nodes_[at] = std::max(nodes_[2 * at], nodes_[2 * at + 1]);
  }
}

/// Each level needs one comparison, with the sibling node.
void Placer::set(std::uint32_t place, Word best) {
  for (std::size_t at = leaves_ + place; at > 1; at /= 2) {
    nodes_[at] = best;
    best = std::max(best, nodes_[at ^ 1]);
  }
  nodes_[1] = best;
}

bool Placer::add(std::uint32_t sample, bool under_target) {
  const std::int64_t tokens = bins_.samples().tokens[sample];
  while (!parked_.empty() && parked_.front().first >= tokens) {
    const std::uint32_t place = parked_.front().second;
    std::pop_heap(parked_.begin(), parked_.end());
    parked_.pop_back();
    set(place, word(place));
  }
  while (nodes_[1] != kClosed && room(top()) < tokens) {
    parked_.emplace_back(room(top()), top());
    std::push_heap(parked_.begin(), parked_.end());
    set(top(), kClosed);
  }
  if (nodes_[1] == kClosed) return false;
  const std::uint32_t place = top(), bin = first_ + place;
  if (under_target && targets_[place] - bins_.load(bin) < bins_.samples().cost[sample])
    return false;
  bins_.add(sample, bin);
  set(place, word(place));
  return true;
}

std::size_t place(Bins& bins, std::span<const std::uint32_t> order,
                  std::span<const std::int64_t> targets, std::int64_t max_tokens) {
  Placer placer(bins, 0, targets, max_tokens);
  std::size_t unplaced = 0;
  for (const std::uint32_t sample : order) unplaced += !placer.add(sample);
  return unplaced;
}

}  // namespace flowtrain::packing
