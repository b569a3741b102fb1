#pragma once

#include <cstdint>
#include <span>

#include "packing/bins.hpp"

namespace flowtrain::packing {

/// Puts each sample of `order` into the bin that is farthest below its target and has room.
///
/// With equal targets and no cap this is Graham's longest processing time first. O(N log K), as
/// long as cost and tokens order the samples alike.
///
/// Args: `bins` may hold others already; `targets` has one cost per bin; ties fall to the lower
/// bin. Returns: how many samples fit nowhere; they have no bin. Source: a bin exceeds its target
/// by at most its last sample while the cap does not bind.
std::size_t place(Bins& bins, std::span<const std::uint32_t> order,
                  std::span<const std::int64_t> targets, std::int64_t token_cap);

/// Puts each sample of `order` that has no bin into the fullest bin with room for it: what saves
/// a step whose tokens barely fit.
///
/// Returns: how many samples fit nowhere.
std::size_t place_tightly(Bins& bins, std::span<const std::uint32_t> order, std::int64_t token_cap);

}  // namespace flowtrain::packing
