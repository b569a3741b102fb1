#pragma once

#include <cstdint>
#include <vector>

#include "packing/problem.hpp"

namespace flowtrain::packing {

/// Where data-parallel ranks wait for each other, which is what a schedule must make short.
enum class Objective {
  kLockstep,  ///< In every microbatch: the sum over slots of the slowest rank.
  kFree,      ///< Once a step: the slowest rank's sum over its slots.
  kMakespan,  ///< The heaviest bin.
  kPipeline,  ///< Once a step, each rank a pipeline: see pipeline_bound in bound.hpp.
};

/// A schedule and its certificate, in the unit of the costs.
struct Schedule {
  explicit Schedule(std::size_t samples) : slot(samples, -1), rank(samples, -1) {}

  std::vector<std::int32_t> slot;  ///< Of each sample; -1 where it did not fit.
  std::vector<std::int32_t> rank;
  std::int64_t value = 0;  ///< What the objective comes to.
  std::int64_t bound = 0;  ///< At most what any schedule could reach.
  std::size_t unplaced = 0;
};

/// Places, refines and aligns a closed batch.
///
/// The same input gives the same schedule on every platform with IEEE 754 doubles: see "The same
/// plan on every rank" in docs/packing.md.
///
/// Args: `refined` false skips the refinement, for what is looked at and thrown away. `closed` says
///   that every sample should be placed, even where balance must then give way; else what does
///   not fit may wait.
/// Errors: none; what does not fit under the cap is counted in `unplaced`.
Schedule schedule(const Samples& samples, const Grid& grid, Objective objective, bool refined,
                  bool closed = true);

/// At most what any schedule could reach, see bound.hpp. `thorough` false is quicker, and may be
/// less.
std::int64_t bound(const Samples& samples, const Grid& grid, Objective objective,
                   bool thorough = true);

}  // namespace flowtrain::packing
