#pragma once

#include <cstdint>

#include "packing/problem.hpp"

namespace flowtrain::packing {

/// The value that a schedule minimizes: it depends on when data-parallel ranks wait.
/// Another one needs a file, cases in schedule.cpp and bind_packing.cpp, and in Python
/// `Objective` (interface.py) and `Assignment.value`.
enum class Objective {
  kLockstep,       ///< In every microbatch: the sum over slots of the slowest rank.
  kAccumulate,     ///< Once a step: the slowest rank's sum over its slots.
  kMaxMicrobatch,  ///< The heaviest bin.
  kPipeline,       ///< Once a step, each rank a pipeline: see pipeline_bound in bound.hpp.
};

/// A schedule, its value and its bound, in the unit of the costs.
struct Schedule {
  explicit Schedule(std::size_t samples) : slot(samples, -1), rank(samples, -1) {}

  Vector<std::int32_t> slot;  ///< Of each sample; -1 where it did not fit.
  Vector<std::int32_t> rank;
  std::int64_t value = 0;  ///< Of the objective.
  std::int64_t bound = 0;  ///< A lower bound of any schedule's value.
  std::size_t unplaced = 0;
};

/// Places, refines and aligns the samples of a step.
///
/// The same input gives the same schedule on every platform with IEEE 754 doubles: see "The same
/// plan on every rank" in docs/packing.md.
///
/// Args: `refined` false skips the refinement, for plans that are only compared. `place_all` places
///   every sample if a search finds room, at the cost of balance; else samples may stay unplaced.
/// Errors: none; what does not fit under the cap is counted in `unplaced`.
Schedule schedule(const Samples& samples, const Grid& grid, Objective objective, bool refined,
                  bool place_all = true);

/// A lower bound of any schedule's value, see bound.hpp. `thorough` false is quicker, and the bound
/// may be lower.
std::int64_t bound(const Samples& samples, const Grid& grid, Objective objective,
                   bool thorough = true);

}  // namespace flowtrain::packing
