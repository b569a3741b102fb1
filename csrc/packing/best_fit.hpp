#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "packing/problem.hpp"

namespace flowtrain::packing {

/// Packs samples in the order given, each into the fullest bin that has room, or a new one.
///
/// Bins are kept by what room they have left in a tree of words with 64 children each, so a
/// sample costs O(log64 token_cap); of bins with equal room the latest is taken.
///
/// Args: `tokens` at most token_cap each.
/// Returns: bin of each sample; bins are numbered as they are opened.
/// Source: FlowTrain's scheduler, arXiv 2606.23087, algorithm 1, whose segment tree has two.
std::vector<std::uint32_t> best_fit(std::span<const std::int64_t> tokens,
                                    std::span<const std::uint32_t> order, std::int64_t token_cap);

/// Packs samples in the order given into the last bin, and opens the next when either sum would
/// exceed its cap.
///
/// Returns: bin of each sample.
std::vector<std::uint32_t> next_fit(std::span<const std::int64_t> tokens,
                                    std::span<const std::int64_t> others,
                                    std::span<const std::uint32_t> order, std::int64_t token_cap,
                                    std::int64_t other_cap);

}  // namespace flowtrain::packing
