#pragma once

#include <cstdint>
#include <optional>

#include "channel/control.hpp"
#include "channel/lanes.hpp"

namespace flowtrain::channel {

/// Cuts slabs off segments without classes, as they are asked for, one behind the other.
///
/// Memory:   a segment's cells, of which `num_cut` have a slab. A cut counts once num_cut says
///           so: whoever dies before leaves nothing behind, whoever dies after a free slab.
/// Threads:  one cutter at a time over all processes, by Lanes::Right::kCarve. A segment that ends
///           meanwhile keeps its entry and its cells from every other use, as both are given to
///           new segments under the same right: what is written here is then written to nobody's.
/// Progress: never waits; a cutter that stops holds up cutting and new segments, and no slab that
///           is there.
/// Ordering: segment.cut publishes the cells of a segment; cut_epoch, read before and after an
///           allocation, tells whether cuts were undone in between.
/// Errors:   never throws; where it cannot cut, there is no slab more.
class Cutter {
 public:
  Cutter(const Control& control, Lanes& lanes) : control_(control), lanes_(lanes) {}

  /// Cuts one more slab of `wanted` bytes, or of what is left if that is `least` at least. All
  /// cuts are undone first, where that is what it takes and no slab is in use.
  void cut(std::uint32_t segment, std::uint64_t least, std::uint64_t wanted) noexcept;

 private:
  /// What is behind the last cut, for a cell that has no slab yet.
  struct Room {
    std::uint32_t first_cell;
    std::uint32_t cut;  ///< Cells that have a slab.
    std::uint64_t offset;
    std::uint64_t bytes;
  };

  std::optional<Room> find_room(const SegmentEntry& entry, std::uint64_t least) const noexcept;
  bool is_unused(const SegmentEntry& entry) const noexcept;
  bool undo(SegmentEntry& entry) noexcept;

  const Control& control_;
  Lanes& lanes_;
};

}  // namespace flowtrain::channel
