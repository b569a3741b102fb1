#pragma once

#include <cstdint>
#include <vector>

#include "packing/problem.hpp"

namespace flowtrain::packing {

/// Cost that each slot should have on every rank, highest first, shape [slots].
///
/// A slot is as long as its slowest rank, so samples above the mean are gathered into few slots,
/// whose other ranks are filled up to the same height; the rest share what is left evenly. All
/// slots equal is the special case in which nothing sticks out.
///
/// The next slot is as long as the largest sample that those before it do not hold.
///
/// Where the cap keeps a long slot from carrying as much as it lasts, the others have more to do.
///
/// Args: `order` is samples by descending cost.
/// Source: what the slots carry sums to total cost / ranks, the least any schedule reaches.
std::vector<std::int64_t> slot_targets(const Samples& samples, std::span<const std::uint32_t> order,
                                       const Grid& grid);

}  // namespace flowtrain::packing
