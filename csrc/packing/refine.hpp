#pragma once

#include <cstdint>
#include <span>

#include "packing/bins.hpp"

namespace flowtrain::packing {

/// Limits of refinement. They are counts, never times, so that every rank does the same.
struct Effort {
  std::uint32_t passes = 0;    ///< Times that all bins are paired.
  std::uint64_t work = 0;      ///< Sums of subsets to form, about 10 ns each.
  std::uint8_t patience = 0;   ///< Failures in a row after which a bin is no longer paired.
  std::int64_t tolerance = 0;  ///< Excess over the average that is left alone.
};

/// Pairs the bins farthest above their targets with those farthest below, and divides their samples
/// anew.
///
/// Invariant: the largest excess over a target never grows, and no bin goes over the cap.
/// Returns: the work done.
std::uint64_t refine(Bins& bins, std::span<const std::int64_t> targets, std::uint32_t first,
                     std::int64_t max_tokens, const Effort& effort);

}  // namespace flowtrain::packing
