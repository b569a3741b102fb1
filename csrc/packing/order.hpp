#pragma once

#include <cstdint>

#include "packing/problem.hpp"

namespace flowtrain::packing {

/// Samples by descending cost, then descending tokens, then index: a stable radix sort, so that
/// every rank has the same order.
Vector<std::uint32_t> order_by_cost(const Samples& samples);

/// Samples by descending value, then index.
Vector<std::uint32_t> order_descending(std::span<const std::int64_t> values);

/// The samples of `by_cost` by descending cost per token, equal ones in that order. A sample counts
/// as one token at least.
Vector<std::uint32_t> order_by_density(const Samples& samples, Order by_cost);

}  // namespace flowtrain::packing
