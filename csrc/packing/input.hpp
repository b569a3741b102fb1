#pragma once

#include <cstdint>
#include <span>

#include "packing/problem.hpp"

namespace flowtrain::packing {

/// Checks what kernels rely on: that there are bins, that no value is negative, that no sample is
/// longer than a bin, and that sums fit 62 bits.
///
/// Errors: BadArgument, naming the sample, its value and the limit.
void check(const Samples& samples, const Grid& grid);

/// Costs on a scale on which the largest is 2^32: finer than any cost model, and quick to sort.
///
/// Args: `out` gets as many integers; `name` is what messages call the costs.
/// Returns: the unit; out[i] * unit is the cost given, to half a unit.
/// Errors: BadArgument for what is negative, infinite or no number.
double scale(std::span<const double> cost, std::span<std::int64_t> out, const char* name);

/// Costs divided by their greatest common divisor, so that a unit never changes a schedule.
/// Returns: the divisor.
double reduce(std::span<const std::int64_t> cost, std::span<std::int64_t> out, const char* name);

}  // namespace flowtrain::packing
