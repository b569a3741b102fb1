#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "packing/bins.hpp"

namespace flowtrain::packing {

/// Which samples go into a long slot first. Those with the highest cost per token follow, since the
/// cap limits what a slot carries; then each bin is topped up with what fits.
enum class Gather {
  kAboveEven,     ///< Samples above an even share of the cost, each to the bin farthest below its
                  ///< target.
  kAboveHalf,     ///< Those above half of it.
  kAbove16Times,  ///< Those above 16 times an even share.
  kBinByBin,      ///< Bins are filled one after the other, each with the costliest that fits.
};

/// Bins slot by slot, the long slots first, and the load that each bin should have.
struct Slots {
  Bins bins;
  std::vector<std::int64_t> targets;  ///< Of each bin.
  std::uint32_t long_bins = 0;        ///< Bins of the long slots.
  std::size_t unplaced = 0;           ///< Samples that fit nowhere.
};

/// Fills slots in order. While the costliest sample left exceeds an even share of the cost left, a
/// slot is as long as that sample costs. The other slots are filled together, evenly.
///
/// Args: `order` is samples by descending cost.
Slots fill_slots(const Samples& samples, Order order, const Grid& grid, Gather gather);

}  // namespace flowtrain::packing
