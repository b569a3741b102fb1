#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "channel/layout/control.hpp"

namespace flowtrain::channel {

/// The place of a new segment: a free entry, and consecutive free cells.
///
/// Free cells are recorded nowhere. A cell is free unless an entry that is kMaking, kLive or
/// kDraining has it. So a segment that ends need not return its cells, neighbouring free cells are
/// one gap at once, and a process that dies at any point loses none.
///
/// Chooses the smallest gap that is large enough, and the first of equal ones: a restarted process
/// finds the gap that it had before, and large gaps stay whole. Chooses the first usable entry,
/// because every lease reads the entries up to the last one ever used.
///
/// Memory:   a copy; reads the control tables.
/// Threads:  the caller holds PoolLock::kAssignment; otherwise another process may use the place.
/// Progress: reads each entry once.
/// Ordering: segment.word; a segment that ends meanwhile counts as present or as ended.
/// Errors:   never throws; overlapping ranges, as in a damaged file, are merged.
struct Placement {
  std::optional<std::uint32_t> entry;       ///< Index of the free entry.
  std::optional<std::uint32_t> first_cell;  ///< Of the gap.
  std::uint32_t exhausted_entries = 0;      ///< Dead entries that had their last generation.
  std::uint32_t free_cells = 0;             ///< In all gaps.
  std::uint32_t largest_gap = 0;            ///< In cells.

  /// @param cells  Number of consecutive cells, at least 1.
  static Placement find(const Control& control, std::uint32_t cells) noexcept;
  bool fits() const { return entry && first_cell; }
  /// Which resource is missing, and how to get it; for messages.
  std::string shortage(const Control& control, std::uint32_t cells) const;
};

}  // namespace flowtrain::channel
