#pragma once

#include <cstdint>
#include <span>

#include "packing/problem.hpp"

namespace flowtrain::packing {

/// Lower bounds of what any schedule under the cap can reach, in the unit of the costs. `order` is
/// samples by descending cost.

/// Minimum cost of the heaviest bin: the mean, the largest sample or, where some bins must hold one
/// large sample more than the others, the mean of those.
///
/// Of the j * bins + e largest samples, the q bins that hold more than j hold j * q + e or more; so
/// the heaviest of them costs at least the smallest j * q + e of those samples over q. That is
/// minimal for some q up to e, and maximal for some j and e. O(samples log bins).
std::int64_t max_bin_bound(const Samples& samples, Order order, std::uint32_t bins);

/// Minimum sum over slots of their slowest rank.
///
/// It is at least total / ranks. Slots of samples that cost more than an even share are
/// long, and the cap may keep them from carrying as much as their length allows: if U_q is the
/// maximum cost that q slots can carry, the other slots have to carry total - U_q. The j-th longest
/// slot lasts at least as long as sample (j - 1) * ranks + 1 of those above half the cap, of which
/// no bin holds two; the longest slot lasts as long as the largest sample.
///
/// U_q is the value of a linear program over bins that are limited in tokens, in long samples, and
/// in cost by the length of their slot. Any prices of tokens and of long samples bound it; better
/// prices are searched for, with counted effort, until the bound is `enough`. Source: weak duality;
/// dual feasible functions, Fekete and Schepers (2001).
std::int64_t lockstep_bound(const Samples& samples, Order order, const Grid& grid,
                            std::int64_t enough);

/// Minimum length of the slowest rank's pipeline: the sum of its slots plus, for each stage but
/// one, its heaviest slot.
///
/// A rank with a sample of cost h ends by V only if all its work is at most V - (stages - 1) * h,
/// and no rank does more than V * slots / (slots + stages - 1). What r - 1 ranks can do limits how
/// many of the largest samples they hold, so that another rank has the next one. V is too short if
/// all ranks together cannot do all work by then.
std::int64_t pipeline_bound(const Samples& samples, Order order, const Grid& grid);

}  // namespace flowtrain::packing
