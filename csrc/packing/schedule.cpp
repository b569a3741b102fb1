#include "packing/schedule.hpp"

#include "packing/bound.hpp"
#include "packing/objectives.hpp"
#include "packing/order.hpp"

namespace flowtrain::packing {

Schedule schedule(const Samples& samples, const Grid& grid, Objective objective, bool refined,
                  bool place_all) {
  const Vector<std::uint32_t> order = order_by_cost(samples);
  const Step step{samples, order, grid, refined, place_all};
  switch (objective) {
    case Objective::kLockstep: return lockstep(step);
    case Objective::kAccumulate: return accumulate(step);
    case Objective::kMaxMicrobatch: return max_microbatch(step);
    case Objective::kPipeline: return pipeline(step);
  }
  return Schedule(samples.size());
}

std::int64_t bound(const Samples& samples, const Grid& grid, Objective objective, bool thorough) {
  const Vector<std::uint32_t> order = order_by_cost(samples);
  switch (objective) {
    case Objective::kLockstep:
      return lockstep_bound(samples, order, grid, thorough ? INT64_MAX : 0);
    case Objective::kAccumulate: return max_bin_bound(samples, order, grid.ranks);
    case Objective::kMaxMicrobatch: return max_bin_bound(samples, order, grid.bins());
    case Objective::kPipeline: return pipeline_bound(samples, order, grid);
  }
  return 0;
}

}  // namespace flowtrain::packing
