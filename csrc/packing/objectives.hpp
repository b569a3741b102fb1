#pragma once

#include "packing/refine.hpp"
#include "packing/schedule.hpp"

namespace flowtrain::packing {

/// If the gap exceeds the bound divided by this, other ways to schedule are tried too.
inline constexpr std::int64_t kFarDivisor = 300;

/// Input of an objective: the arguments of `schedule`, and the samples by descending cost.
struct Step {
  const Samples& samples;
  Order order;
  const Grid& grid;
  bool refined;
  bool place_all;
};

Schedule lockstep(const Step& step);
Schedule accumulate(const Step& step);
Schedule max_microbatch(const Step& step);
Schedule pipeline(const Step& step);

/// Maximum tokens of a rank before they are packed into its slots: 98 % of what the slots hold,
/// since sample lengths leave some room unused.
std::int64_t rank_room(const Grid& grid);

/// Balances ranks, and then packs each rank's samples into its slots. Of a pipeline, samples that
/// are heavier than an even microbatch are gathered on few ranks, which then have less other work.
///
/// Args: `end` is when the slowest rank should end; `rank_cap` is the maximum tokens of a rank
///   before its slots are packed; `effort` is for the ranks.
/// Returns: false where tokens or ranks do not suffice.
bool balance_ranks(const Step& step, std::int64_t end, std::int64_t rank_cap, const Effort& effort,
                   Schedule& out);

}  // namespace flowtrain::packing
