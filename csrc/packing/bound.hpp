#pragma once

#include <cstdint>
#include <span>

#include "packing/problem.hpp"

namespace flowtrain::packing {

/// Each of these is at most what any schedule under the cap can reach, in the unit of the costs.
/// `order` is samples by descending cost.

/// Least possible cost of the heaviest bin: see crowd.hpp.
std::int64_t makespan_bound(const Samples& samples, std::span<const std::uint32_t> order,
                            std::uint32_t bins);

/// Least possible sum over slots of their slowest rank.
///
/// It is at least total / ranks. Where samples stick out, their slots are long but the cap keeps
/// them from carrying as much as they last: with U_q the most cost that q slots can carry, the
/// others still have total - U_q to do. The j-th longest slot lasts at least as long as sample
/// (j - 1) * ranks + 1 of those above half the cap, of which no bin holds two; the longest as the
/// largest of all.
///
/// U_q is a linear program over bins that hold so many tokens, so many samples above half the cap
/// or a third of it, and no more cost than their slot lasts. Any prices of tokens and of long
/// samples bound it; better ones are searched for, with counted effort, until the bound is
/// `enough`. Source: weak duality; dual feasible functions, Fekete and Schepers (2001).
std::int64_t lockstep_bound(const Samples& samples, std::span<const std::uint32_t> order,
                            const Grid& grid, std::int64_t enough);

/// Least possible length of the slowest rank's pipeline: the sum of its slots and, for each stage
/// but one, its heaviest slot again.
///
/// A rank with a sample of cost h ends by V only if all its work is at most V - (stages - 1) * h,
/// and no rank does more than V * slots / (slots + stages - 1). What the r - 1 ranks with the
/// heaviest samples can do bounds how many of the largest samples they hold, so that the next rank
/// has one of the others; V is too short if all ranks together cannot do the whole.
std::int64_t pipeline_bound(const Samples& samples, std::span<const std::uint32_t> order,
                            const Grid& grid);

}  // namespace flowtrain::packing
