#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "packing/bins.hpp"

namespace flowtrain::packing {

/// Bins, of which the first are long, and the costs they should have.
struct Peeled {
  Bins bins;
  std::vector<std::int64_t> targets;
  std::uint32_t long_bins = 0;
  std::size_t unplaced = 0;  ///< Samples that fit nowhere.
};

/// Bins for steps whose cap keeps long slots from carrying as much as they last. Slots are filled
/// one after the other, each with what makes it long and then with what costs most per token; what
/// is left says how long the next must be. Where it pays, a slot lasts longer than its largest
/// sample needs, to hold another that would make the next one long.
///
/// Args: `order` is samples by descending cost.
Peeled peel(const Samples& samples, std::span<const std::uint32_t> order, const Grid& grid);

}  // namespace flowtrain::packing
