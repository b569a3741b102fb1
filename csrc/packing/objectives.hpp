#pragma once

#include "packing/fill.hpp"
#include "packing/schedule.hpp"

namespace flowtrain::packing {

/// Where the gap is more than the bound divided by this, other ways to schedule are tried, too.
inline constexpr std::int64_t kFarPart = 300;

/// What an objective is given: see `schedule`. `order` is samples by descending cost.
struct Step {
  const Samples& samples;
  Order order;
  const Grid& grid;
  bool refined;
  bool closed;

  Overflow overflow() const { return closed ? Overflow::kSearch : Overflow::kLeave; }
};

Schedule lockstep(const Step& step);
Schedule free_running(const Step& step);
/// `thorough` false leaves out what comes after the common refinement, for one bin among several.
Schedule makespan(const Step& step, bool thorough = true);
Schedule pipeline(const Step& step);

}  // namespace flowtrain::packing
