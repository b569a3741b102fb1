#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "packing/bins.hpp"

namespace flowtrain::packing {

/// Packs samples in the order given, each into the fullest bin that has room, or into a new one.
/// O(log bins) a sample.
///
/// Args: `tokens` at most max_tokens each.
/// Returns: bin of each sample, numbered as bins are opened; kNone for those not in the order.
/// Source: FlowTrain's scheduler, arXiv 2606.23087, algorithm 1.
std::vector<std::uint32_t> best_fit(std::span<const std::int64_t> tokens, Order order,
                                    std::int64_t max_tokens);

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
/// Args: `tokens` at most max_tokens each.
/// Returns: the first such bins, a proof that there are none, or neither. The number of tries is
///   limited by the number of samples, so that every rank finds the same.
/// Source: Martello and Toth (1990), bin completion without their bounds.
Search search_bins(std::span<const std::int64_t> tokens, std::uint32_t bins,
                   std::int64_t max_tokens);

/// Packs the samples anew by tokens alone, best fit decreasing and, if `thorough`, by a search: for
/// when bins filled towards targets leave no room for a sample.
///
/// Returns: whether all have a bin; else nothing has changed.
bool pack_by_tokens(Bins& bins, std::int64_t max_tokens, bool thorough);

}  // namespace flowtrain::packing
