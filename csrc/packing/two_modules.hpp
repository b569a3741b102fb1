#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "packing/problem.hpp"

namespace flowtrain::packing {

/// Bins of samples whose encoder and backbone work stays together, such that the largest load of
/// either module in any bin is small, under the cap.
///
/// Places samples greedily by the larger of their two costs or, where that leaves no room for one,
/// by tokens alone (search.hpp). Then pairs of bins divide up to twelve bundles of their samples
/// anew (repartition.hpp). At last the worst bin exchanges single samples with any other. Where no
/// exchange is an improvement, the one that costs another bin least is made all the same, and what
/// it moved stays until the largest load is a new minimum.
///
/// Args: `encoder` is in the unit of the costs, shape [num_samples]; both sum to at most 2^62;
///   `rounds` of pairing; `work` in exchanges and divisions considered, of 2 to 5 ns each, the
///   pairing's included. With 0 and 0 it is the greedy part alone. It ends early where the largest
///   load reaches its bound.
/// Returns: bin of each sample, kNone where it did not fit.
/// Source: the problem, and the greedy part, are DFLOP's, arXiv 2603.25120, section 3.4.
std::vector<std::uint32_t> balance_two(const Samples& samples,
                                       std::span<const std::int64_t> encoder, const Grid& grid,
                                       std::uint32_t rounds, std::uint64_t work);

}  // namespace flowtrain::packing
