#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "packing/problem.hpp"

namespace flowtrain::packing {

/// What a search for a place for every sample found.
struct Search {
  std::vector<std::uint32_t> bin_of;  ///< Bin of each sample; empty if none was found.
  bool impossible = false;            ///< Whether it is proven that there are no such bins.
  std::uint64_t tries = 0;            ///< Samples that were put into a bin.
};

/// Searches for bins that hold all samples, by tokens alone: for when packing greedily fails.
///
/// Fills bins one after the other. A bin starts with the longest sample left, takes the longest
/// that fits, and is complete when none fits. Goes back by one sample when complete bins have left
/// more room than all bins have to spare. Of equal samples one is tried.
///
/// Args: `tokens` at most token_cap each.
/// Returns: the first such bins, a proof that there are none, or neither after a number of tries
///   that the number of samples sets, so that every rank finds the same.
/// Source: Martello and Toth (1990), bin completion without their bounds.
Search search_bins(std::span<const std::int64_t> tokens, std::uint32_t bins,
                   std::int64_t token_cap);

}  // namespace flowtrain::packing
