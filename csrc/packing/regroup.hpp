#pragma once

#include <cstdint>

#include "packing/bins.hpp"

namespace flowtrain::packing {

/// Packs bins above a limit anew, each together with two others: for what pairs cannot part.
///
/// Where sizes come in few clusters, what a bin may hold are few combinations of them, and no
/// exchange of two bins leads from one to the next. So three are emptied, filled costliest first,
/// and evened out pair by pair; they stay as they were unless the heaviest has become lighter.
///
/// Invariant: the heaviest bin never grows, and no bin goes over the cap.
///
/// Args: `limit` is the load that is good enough; `work` is as in `Effort`.
void regroup(Bins& bins, std::int64_t limit, std::int64_t token_cap, std::uint64_t work);

}  // namespace flowtrain::packing
