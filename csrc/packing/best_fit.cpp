#include "packing/best_fit.hpp"

#include <bit>

namespace flowtrain::packing {
namespace {

/// Set of integers below a limit; finds the smallest that is not less than a value.
class IntegerSet {
 public:
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

  /// UINT64_MAX if there is none.
  std::uint64_t at_least(std::uint64_t value) const {
    for (std::size_t up = 0; up < levels_.size(); ++up) {
      if (value / 64 >= levels_[up].size()) return UINT64_MAX;
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
    return UINT64_MAX;
  }

 private:
  std::vector<std::vector<std::uint64_t>> levels_;  ///< Leaves first.
};

}  // namespace

std::vector<std::uint32_t> best_fit(std::span<const std::int64_t> tokens,
                                    std::span<const std::uint32_t> order, std::int64_t token_cap) {
  const auto rooms = static_cast<std::uint64_t>(token_cap) + 1;
  IntegerSet open(rooms);
  std::vector<std::uint32_t> latest(rooms, kNone);  // Bin with so much room.
  std::vector<std::uint32_t> before;                // Per bin: the one with as much room.
  std::vector<std::uint32_t> bins(tokens.size(), kNone);
  for (const std::uint32_t i : order) {
    const auto length = static_cast<std::uint64_t>(tokens[i]);
    std::uint64_t room = open.at_least(length);
    std::uint32_t bin = 0;
    if (room == UINT64_MAX) {
      bin = static_cast<std::uint32_t>(before.size());
      before.push_back(kNone);
      room = static_cast<std::uint64_t>(token_cap);
    } else {
      bin = latest[room];
      latest[room] = before[bin];
      if (latest[room] == kNone) open.erase(room);
    }
    bins[i] = bin;
    room -= length;
    before[bin] = latest[room];
    latest[room] = bin;
    open.insert(room);
  }
  return bins;
}

std::vector<std::uint32_t> next_fit(std::span<const std::int64_t> tokens,
                                    std::span<const std::int64_t> others,
                                    std::span<const std::uint32_t> order, std::int64_t token_cap,
                                    std::int64_t other_cap) {
  std::vector<std::uint32_t> bins(tokens.size(), kNone);
  std::uint32_t bin = 0;
  std::int64_t used = 0, other = 0;
  bool empty = true;
  for (const std::uint32_t i : order) {
    if (!empty && (used + tokens[i] > token_cap || other + others[i] > other_cap)) {
      ++bin;
      used = other = 0;
    }
    bins[i] = bin;
    used += tokens[i];
    other += others[i];
    empty = false;
  }
  return bins;
}

}  // namespace flowtrain::packing
