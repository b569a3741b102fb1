#include "packing/open_slot.hpp"

#include <algorithm>

namespace flowtrain::packing {
namespace {

constexpr int kTries = 8;  // Bins that are asked for room for one sample.

}  // namespace

OpenSlot::OpenSlot(Bins& bins, std::uint32_t first, std::uint32_t ranks, std::int64_t length,
                   std::int64_t token_cap)
    : bins_(bins), first_(first), ranks_(ranks), length_(length), token_cap_(token_cap) {}

bool OpenSlot::fit(std::uint32_t sample) {
  if (by_room_.empty()) {
    for (std::uint32_t b = first_; b < first_ + ranks_; ++b) by_room_.emplace(room(b), b);
  }
  auto at = by_room_.lower_bound({tokens(sample), 0});
  for (int tries = 0; tries < kTries && at != by_room_.end(); ++tries, ++at) {
    const std::uint32_t bin = at->second;
    if (missing(bin) < cost(sample)) continue;
    by_room_.erase(at);
    bins_.add(sample, bin);
    by_room_.emplace(room(bin), bin);
    return true;
  }
  return false;
}

bool OpenSlot::spread(std::uint32_t sample) {
  if (!spreading_) {
    for (std::uint32_t b = first_; b < first_ + ranks_; ++b) want(b);
    spreading_ = true;
  }
  asked_.clear();
  bool placed = false;
  for (int tries = 0; tries < kTries && !placed && !wanting_.empty(); ++tries) {
    if (wanting_.front().first < cost(sample)) break;
    std::pop_heap(wanting_.begin(), wanting_.end());
    const std::uint32_t bin = wanting_.back().second;
    wanting_.pop_back();
    placed = tokens(sample) <= room(bin);
    if (placed) bins_.add(sample, bin);
    if (!full(bin)) asked_.push_back(bin);
  }
  for (const std::uint32_t bin : asked_) want(bin);
  return placed;
}

std::int64_t OpenSlot::length_to_hold(std::uint32_t sample) const {
  std::int64_t least = kNever;
  for (std::uint32_t b = first_; b < first_ + ranks_; ++b) {
    if (tokens(sample) <= room(b)) least = std::min(least, bins_.load(b) + cost(sample));
  }
  return least;
}

void OpenSlot::want(std::uint32_t bin) {
  wanting_.emplace_back(missing(bin), bin);
  std::push_heap(wanting_.begin(), wanting_.end());
}

}  // namespace flowtrain::packing
