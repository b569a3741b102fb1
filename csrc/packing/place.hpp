#pragma once

#include <cstdint>
#include <span>
#include <utility>
#include <vector>

#include "packing/bins.hpp"

namespace flowtrain::packing {

/// Puts samples one by one into the bin that is farthest below its target and has room.
///
/// Memory:  a tournament tree of the bins, 32 bytes per bin, and a heap of those without room.
/// Threads: none.
/// Errors:  none; a sample that fits nowhere has no bin.
class Placer {
 public:
  /// Fills the bins from `first` on, one for each target; they may hold samples already.
  Placer(Bins& bins, std::uint32_t first, std::span<const std::int64_t> targets,
         std::int64_t max_tokens);

  /// Places a sample, of equal bins in the lower one. O(log bins) while tokens descend with costs.
  ///
  /// Args: `under_target` says that no bin may exceed its target.
  /// Returns: false where no bin has room, or the one farthest below its target would exceed it.
  bool add(std::uint32_t sample, bool under_target = false);

 private:
  using Word = Wide;  // High: load that a bin misses. Low: its place.

  static constexpr Word kClosed = static_cast<Word>(1) << 127;

  Word word(std::uint32_t place) const {
    const std::int64_t missing = targets_[place] - bins_.load(first_ + place);
    return (Word{missing} << 32) | (UINT32_MAX - place);
  }
  std::uint32_t top() const { return UINT32_MAX - static_cast<std::uint32_t>(nodes_[1]); }
  std::int64_t room(std::uint32_t place) const {
    return max_tokens_ - bins_.tokens(first_ + place);
  }
  void set(std::uint32_t place, Word best);

  Bins& bins_;
  std::uint32_t first_;
  std::span<const std::int64_t> targets_;
  std::int64_t max_tokens_;
  std::size_t leaves_;
  Vector<Word> nodes_;  ///< The winner of each pair, from the root at 1 to the leaves.
  /// Bins too full for a sample that asked: by room, to be opened again for a shorter one.
  std::vector<std::pair<std::int64_t, std::uint32_t>> parked_;
};

/// Places the samples of `order`, one after the other.
///
/// With equal targets and no cap this is Graham's longest processing time first: a bin exceeds its
/// target by at most its last sample.
///
/// Returns: how many samples fit nowhere; they have no bin.
std::size_t place(Bins& bins, std::span<const std::uint32_t> order,
                  std::span<const std::int64_t> targets, std::int64_t max_tokens);

}  // namespace flowtrain::packing
