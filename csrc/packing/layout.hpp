#pragma once

#include <cstdint>
#include <vector>

#include "packing/bins.hpp"
#include "packing/schedule.hpp"

namespace flowtrain::packing {

/// Bins by descending load: cut every `ranks`, they are slots whose slowest ranks sum to the
/// minimum that these bins allow.
///
/// Source: q - 1 slots hold (q - 1) * ranks bins, so the q-th longest slot is never shorter than
/// bin (q - 1) * ranks + 1.
Vector<std::uint32_t> align(const Bins& bins);

/// Slot and rank of each sample: aligned bins make slots, and in each slot the heaviest bin goes to
/// the rank with the lowest sum so far.
void lay_out(Schedule& out, const Bins& bins, std::uint32_t ranks);

/// Load of each microbatch of a schedule, shape [ranks, slots].
std::vector<std::int64_t> microbatch_loads(const Schedule& schedule, const Samples& samples,
                                           const Grid& grid);

}  // namespace flowtrain::packing
