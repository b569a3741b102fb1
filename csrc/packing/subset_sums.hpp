#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>

namespace flowtrain::packing {

/// Costs of all subsets of up to ten things, in ascending order, with their tokens.
///
/// A sum is one word, cost above and subset below, so that adding and comparing are single
/// instructions. Costs too large for that are rounded in the words, and exact beside them.
///
/// Memory:  32 KiB, in place; nothing is allocated.
/// Threads: none.
/// Errors:  none; the eleventh thing is the caller's mistake.
class SubsetSums {
 public:
  static constexpr std::size_t kMost = 10;

  /// Forgets all things. Costs are rounded to multiples of 2^shift in the order, such that the sum
  /// of all stays below 2^52 of them.
  void clear(int shift) {
    count_ = 1;
    at_ = 0;
    shift_ = shift;
    words_[0][0] = cost_[0] = tokens_[0] = 0;
  }

  /// Adds a thing: the sums without it and those with it are merged, from both ends at once, so
  /// that two chains of comparisons run side by side.
  void add(std::int64_t cost, std::int64_t tokens) {
    const std::size_t count = count_, last = count - 1;
    for (std::size_t k = 0; k < count; ++k) {
      cost_[k + count] = cost_[k] + cost;
      tokens_[k + count] = tokens_[k] + tokens;
    }
    const std::int64_t more = ((cost >> shift_) << kMost) | static_cast<std::int64_t>(count);
    const std::int64_t* from = words_[at_].data();
    at_ ^= 1U;
    std::int64_t* to = words_[at_].data();
    std::size_t low = 0, high = 0;  // Sums without it that were taken from either end.
    for (std::size_t k = 0; k < count; ++k) {
      const std::int64_t x = from[low], y = from[k - low] + more;
      to[k] = std::min(x, y);
      low += x < y;
      const std::int64_t u = from[last - high], v = from[last - (k - high)] + more;
      to[2 * last + 1 - k] = std::max(u, v);
      high += u > v;
    }
    count_ = 2 * count;
  }

  std::size_t count() const { return count_; }
  /// Cost of the k-th, over 2^shift, rounded down thing by thing.
  std::int64_t rounded(std::size_t k) const { return words_[at_][k] >> kMost; }
  /// Things of the k-th, in bits by the order in which they were added.
  std::size_t subset(std::size_t k) const {
    return static_cast<std::size_t>(words_[at_][k]) & (kSums - 1);
  }
  std::int64_t cost(std::size_t k) const { return cost_[subset(k)]; }
  std::int64_t tokens(std::size_t k) const { return tokens_[subset(k)]; }

 private:
  static constexpr std::size_t kSums = std::size_t{1} << kMost;

  std::array<std::array<std::int64_t, kSums>, 2> words_;  ///< Those in use, and where to merge.
  std::array<std::int64_t, kSums> cost_;                  ///< By subset.
  std::array<std::int64_t, kSums> tokens_;
  std::size_t count_ = 1;
  std::uint32_t at_ = 0;
  int shift_ = 0;
};

}  // namespace flowtrain::packing
