#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "packing/problem.hpp"

namespace flowtrain::packing {

/// Refuses what kernels trust: that there are bins, that nothing is negative or longer than a
/// bin, and that sums fit 62 bits.
///
/// Errors: BadArgument, naming the sample, its value and the limit.
void check(const Samples& samples, const Grid& grid);

/// Costs as integers, and what one of them is worth.
struct Scaled {
  std::vector<std::int64_t> cost;
  double unit = 1.0;  ///< cost[i] * unit is the cost given, to half a unit.
};

/// Costs on a scale on which the largest is 2^32: finer than any cost model, and quick to sort.
///
/// `name` is what messages call the costs.
/// Errors: BadArgument for what is negative, infinite or no number.
Scaled scale(std::span<const double> cost, const char* name);

/// Costs divided by what they all are multiples of, so that a unit never changes a schedule.
Scaled reduce(std::span<const std::int64_t> cost, const char* name);

}  // namespace flowtrain::packing
