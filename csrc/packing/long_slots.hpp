#pragma once

#include <cstdint>
#include <span>

#include "packing/bins.hpp"

namespace flowtrain::packing {

/// Brings the first `long_bins` bins, which single samples make long, to their targets, or as near
/// as the cap lets them. The other bins give what is needed and take what is not.
///
/// A long bin holds few samples, so pairing it with any other bin rarely helps; instead, the one
/// sample that fits is looked up among all. Where the cap is in the way, bins are shared anew.
///
/// Args: `order` is samples by descending cost; `tolerance` is the miss that is left alone.
/// Returns: the work done, in sums as `Effort` counts them.
std::uint64_t fill_long_bins(Bins& bins, std::span<const std::uint32_t> order,
                             std::span<const std::int64_t> targets, std::uint32_t long_bins,
                             std::int64_t token_cap, std::int64_t tolerance);

}  // namespace flowtrain::packing
