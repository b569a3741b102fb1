#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace flowtrain::packing {

/// Splits values into parts of nearly equal sums by the largest differencing method: the two
/// partial splits that are most uneven are joined against each other, until one is left.
///
/// Args: `order` is the values by descending size. With `equal_count` no part has more than one
///   value more than another, which is easy to do evenly and fails where one value exceeds a
///   part's fair share.
/// Returns: part of each value. O(n * parts * log parts), and as much memory as n * parts sums.
/// Source: Karmarkar and Karp (1982).
std::vector<std::uint32_t> difference(std::span<const std::int64_t> values,
                                      std::span<const std::uint32_t> order, std::uint32_t parts,
                                      bool equal_count);

}  // namespace flowtrain::packing
