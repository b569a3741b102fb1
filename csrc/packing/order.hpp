#pragma once

#include <cstdint>
#include <vector>

#include "packing/problem.hpp"

namespace flowtrain::packing {

/// Samples by descending cost, then descending tokens, then index: a stable radix sort, so that
/// every rank has the same order.
std::vector<std::uint32_t> order_by_cost(const Samples& samples);

/// Samples by descending value, then index; the `ignored` lowest bits of what a value is below the
/// largest count for nothing, which is quicker where a rough order will do.
std::vector<std::uint32_t> order_descending(std::span<const std::int64_t> values, int ignored = 0);

/// The samples of `by_cost` by descending cost per token, equal ones mostly in that order. None
/// counts as less than a token.
std::vector<std::uint32_t> order_by_density(const Samples& samples,
                                            std::span<const std::uint32_t> by_cost);

}  // namespace flowtrain::packing
