#pragma once

#include <bit>
#include <cstdint>
#include <vector>

namespace flowtrain::packing {

/// Set of integers below a limit, as a tree of words with 64 children each.
///
/// Memory:  a bit per integer below the limit, and a 64th more.
/// Threads: none.
/// Errors:  none.
class IntegerSet {
 public:
  static constexpr std::uint64_t kNoValue = UINT64_MAX;

  explicit IntegerSet(std::uint64_t limit) {
    do {
      limit = (limit + 63) / 64;
      levels_.emplace_back(limit);
    } while (limit > 1);
  }

  void insert(std::uint64_t value) {
    for (auto& level : levels_) {
      level[value / 64] |= std::uint64_t{1} << value % 64;
      value /= 64;
    }
  }

  void erase(std::uint64_t value) {
    for (auto& level : levels_) {
      level[value / 64] &= ~(std::uint64_t{1} << value % 64);
      if (level[value / 64] != 0) return;
      value /= 64;
    }
  }

  /// The smallest that is not less than `value`, or kNoValue.
  std::uint64_t at_least(std::uint64_t value) const {
    for (std::size_t up = 0; up < levels_.size(); ++up) {
      if (value / 64 >= levels_[up].size()) return kNoValue;
      const std::uint64_t word = levels_[up][value / 64] >> value % 64;
      if (word != 0) {
        value += static_cast<std::uint64_t>(std::countr_zero(word));
        for (; up > 0; --up) {
          value = value * 64 + static_cast<std::uint64_t>(std::countr_zero(levels_[up - 1][value]));
        }
        return value;
      }
      value = value / 64 + 1;  // Everything in this word is less.
    }
    return kNoValue;
  }

 private:
  std::vector<std::vector<std::uint64_t>> levels_;  ///< Leaves first.
};

}  // namespace flowtrain::packing
