#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "channel/control.hpp"

namespace flowtrain::channel {

/// Where a new segment can go: a table entry, and consecutive cells that no segment has.
///
/// Free cells are not recorded anywhere. A cell is free unless an entry that is kMaking, kLive or
/// kDraining has it, so segments that end need not return anything: neighbouring free cells are one
/// gap at once, whatever had them before, and a process that dies at any point loses none.
///
/// The smallest gap that is large enough is taken, and the first of equal ones. A process that is
/// started again thus finds the gap of its former self, and large gaps stay whole. The first usable
/// entry is taken, since every allocation looks at the entries up to the last one ever used.
///
/// Memory:   a copy; reads the control tables.
/// Threads:  the caller has Lanes::Right::kCarve, or what is free may be taken meanwhile.
/// Progress: reads each entry once.
/// Ordering: segment.word; a segment that ends meanwhile counts as there or as gone.
/// Errors:   never throws; ranges that overlap, as in a damaged file, are merged.
struct FreeRoom {
  std::optional<std::uint32_t> entry;       ///< Index of an entry for one more segment.
  std::optional<std::uint32_t> first_cell;  ///< Of a gap that is large enough.
  std::uint32_t entries_worn_out = 0;       ///< Dead entries that had their last generation.
  std::uint32_t free_cells = 0;             ///< In all gaps.
  std::uint32_t largest_gap = 0;            ///< In cells.

  /// @param cells  How many consecutive cells are wanted, at least 1.
  static FreeRoom find(const Control& control, std::uint32_t cells) noexcept;
  bool fits() const { return entry && first_cell; }
  /// Says which resource is short if the segment does not fit, and the way out.
  std::string shortage(const Control& control, std::uint32_t cells) const;
};

}  // namespace flowtrain::channel
