#pragma once

#include <cstdint>
#include <span>

#include "packing/problem.hpp"

namespace flowtrain::packing {

/// Refuses what kernels trust: that there are bins, that nothing is negative or longer than a
/// bin, and that sums fit 62 bits.
///
/// Errors: BadArgument, naming the sample, its value and the limit.
void check(const Samples& samples, const Grid& grid);

/// Costs on a scale on which the largest is 2^32: finer than any cost model, and quick to sort.
///
/// Args: `out` gets as many integers; `name` is what messages call the costs.
/// Returns: the unit; out[i] * unit is the cost given, to half a unit.
/// Errors: BadArgument for what is negative, infinite or no number.
double scale(std::span<const double> cost, std::span<std::int64_t> out, const char* name);

/// Costs divided by what they all are multiples of, so that a unit never changes a schedule.
double reduce(std::span<const std::int64_t> cost, std::span<std::int64_t> out, const char* name);

}  // namespace flowtrain::packing
