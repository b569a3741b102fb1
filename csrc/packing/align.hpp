#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "packing/problem.hpp"

namespace flowtrain::packing {

/// Bins by descending load: cut every `ranks`, they are slots whose slowest ranks sum to the
/// least that these bins allow.
///
/// Source: q - 1 slots hold (q - 1) * ranks bins, so the q-th longest slot is never shorter than
/// bin (q - 1) * ranks + 1.
std::vector<std::uint32_t> align(std::span<const std::int64_t> loads);

/// Rank of each place of `aligned`: slot by slot, the heaviest bin goes to the rank that has the
/// least so far.
std::vector<std::uint32_t> deal_ranks(std::span<const std::int64_t> loads,
                                      std::span<const std::uint32_t> aligned, std::uint32_t ranks);

/// Sum over slots of their slowest rank.
std::int64_t lockstep_cost(std::span<const std::int64_t> loads,
                           std::span<const std::uint32_t> aligned, std::uint32_t ranks);

}  // namespace flowtrain::packing
