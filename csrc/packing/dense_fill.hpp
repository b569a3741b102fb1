#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "packing/bins.hpp"

namespace flowtrain::packing {

/// As `fill`, for long bins that the cap keeps from reaching their targets: they get the samples
/// that cost most per token, and not those that cost most. Where cost grows faster than tokens
/// these are the same.
///
/// Args: `order` is samples by descending cost; the first `long_bins` bins are the long ones;
/// `targets` of the others become what is left for them. `unplaced` becomes the number of samples
/// that fit nowhere.
Bins fill_densely(const Samples& samples, std::span<const std::uint32_t> order,
                  std::vector<std::int64_t>& targets, std::uint32_t long_bins,
                  std::int64_t token_cap, std::size_t* unplaced);

}  // namespace flowtrain::packing
