#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace flowtrain::packing {

/// Subset of values whose sum is nearest to a target, by dynamic programming.
///
/// Exact while the values sum to at most 65,536; else they are rounded to 65,536ths of their sum.
///
/// Returns: whether each value is in the subset.
std::vector<std::uint8_t> nearest_subset(std::span<const std::int64_t> values, std::int64_t target);

/// Matches each overloaded row with an own underloaded column, or with none, so that the largest
/// result is least.
///
/// Args: `paired`, row-major [rows x columns], is the larger load of a pair after the row gave some
///   of its own to the column; `alone` is the load of a row that gives nothing.
/// Returns: column of each row; rows that gain nothing get one of the free columns, or -1.
/// Source: bisection over the values and augmenting paths; Entrain, arXiv 2605.27918, algorithm 3.
std::vector<std::int32_t> bottleneck_match(std::span<const std::int64_t> paired,
                                           std::span<const std::int64_t> alone,
                                           std::uint32_t columns);

}  // namespace flowtrain::packing
