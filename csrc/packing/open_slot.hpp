#pragma once

#include <cstdint>
#include <limits>
#include <set>
#include <utility>
#include <vector>

#include "packing/bins.hpp"

namespace flowtrain::packing {

inline constexpr std::int64_t kNever = std::numeric_limits<std::int64_t>::max();

/// The bins of one slot while it is filled, of which none gets longer than the slot.
///
/// Memory:  a few words per bin.
/// Threads: none.
/// Errors:  none.
class OpenSlot {
 public:
  /// The bins from `first` on, as many as there are ranks.
  OpenSlot(Bins& bins, std::uint32_t first, std::uint32_t ranks, std::int64_t length,
           std::int64_t token_cap);

  /// Puts a sample where it leaves least room. Not after `spread`.
  bool fit(std::uint32_t sample);

  /// Puts a sample where most is missing.
  bool spread(std::uint32_t sample);

  /// Least length with which some bin would hold a sample; kNever where it is too long for all.
  std::int64_t length_to_hold(std::uint32_t sample) const;

  std::int64_t room(std::uint32_t bin) const { return token_cap_ - bins_.tokens(bin); }
  std::int64_t missing(std::uint32_t bin) const { return length_ - bins_.load(bin); }
  bool full(std::uint32_t bin) const { return room(bin) < token_cap_ / kFullPart; }

 private:
  static constexpr std::int64_t kFullPart = 256;  // Of the cap; with less room a bin is full.

  std::int64_t tokens(std::uint32_t sample) const { return bins_.samples().tokens[sample]; }
  std::int64_t cost(std::uint32_t sample) const { return bins_.samples().cost[sample]; }
  void want(std::uint32_t bin);

  Bins& bins_;
  std::uint32_t first_, ranks_;
  std::int64_t length_, token_cap_;
  std::set<std::pair<std::int64_t, std::uint32_t>> by_room_;     ///< Until `spread`.
  std::vector<std::pair<std::int64_t, std::uint32_t>> wanting_;  ///< A heap, from `spread` on.
  std::vector<std::uint32_t> asked_;
  bool spreading_ = false;
};

}  // namespace flowtrain::packing
