#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "packing/problem.hpp"

namespace flowtrain::packing {

/// Bins of samples whose encoder and backbone work cannot be parted, such that the largest load of
/// either module in any bin is small, under the cap.
///
/// Greedy by the larger of the two loads or, where that leaves no room for a sample, by tokens
/// alone (search.hpp); then pairs of bins are shared anew: all divisions of up to ten samples, by
/// the sum of the loads' powers. The power rises from 2 to 16, since the largest load alone says
/// nothing about three of the four. At last the worst bin exchanges single samples with any other;
/// where no exchange is better than none, the one that costs another bin least is made all the
/// same, and what it moved stays until the largest load is less than ever.
///
/// Args: `encoder` is in the unit of the costs, shape [num_samples]; `rounds` of pairing; `work` in
///   exchanges and divisions looked at, of 2 to 5 ns each, the pairing's included. With 0 and 0 it
///   is the greedy part alone. It ends early where the largest load is the mean or a sample's.
/// Returns: bin of each sample, kNone where it did not fit.
/// Source: the problem, and the greedy part, are DFLOP's, arXiv 2603.25120, section 3.4.
std::vector<std::uint32_t> balance_two(const Samples& samples,
                                       std::span<const std::int64_t> encoder, const Grid& grid,
                                       std::uint32_t rounds, std::uint64_t work);

}  // namespace flowtrain::packing
