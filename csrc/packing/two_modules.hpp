#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "packing/problem.hpp"

namespace flowtrain::packing {

/// Bins of samples whose encoder and backbone work cannot be parted, such that the largest load of
/// either module in any bin is small, under the cap.
///
/// Greedy by the larger of the two loads, then pairs of bins are shared anew: all divisions of up
/// to ten samples, by the sum of the loads' powers. The power rises from 2 to 16, since the
/// largest load alone says nothing about three of the four. At last the worst bin exchanges single
/// samples with any other, step by step, and where none helps is shared anew with each.
///
/// Args: `encoder` is in the unit of the costs, shape [num_samples]; `rounds` of pairing, of about
///   5 us a pair; `steps` of single exchanges, of about 10 us each for 256 samples. With 0 and 0
///   it is the greedy part alone.
/// Returns: bin of each sample, kNone where it did not fit.
/// Source: the problem, and the greedy part, are DFLOP's, arXiv 2603.25120, section 3.4.
std::vector<std::uint32_t> balance_two(const Samples& samples,
                                       std::span<const std::int64_t> encoder, const Grid& grid,
                                       std::uint32_t rounds, std::uint32_t steps);

}  // namespace flowtrain::packing
