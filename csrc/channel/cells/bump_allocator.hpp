#pragma once

#include <cstdint>
#include <optional>

#include "channel/layout/control.hpp"
#include "channel/liveness/lanes.hpp"

namespace flowtrain::channel {

/// Divides a segment without classes into slabs on demand, one after the other. When no slab is in
/// use, it can reset: the next slab starts at the segment's first byte again.
///
/// Memory:   a segment's cells, of which the first `num_slabs` have a slab. A process that dies
///           before it raises num_slabs leaves nothing; one that dies after it leaves a free slab.
/// Threads:  one at a time over all processes, by PoolLock::kAssignment. New segments get their
///           entry and cells under the same lock. So if a segment ends during a call, its entry and
///           cells are not reused before the call returns.
/// Progress: never waits. A process that stops during a call blocks further calls and new segments,
///           but no slab that exists.
/// Ordering: segment.slabs publishes the slabs of a segment. A lease reads reset_epoch before and
///           after it takes a cell, to detect a reset in between.
/// Errors:   never throws; if it cannot allocate, there is no new slab.
class BumpAllocator {
 public:
  BumpAllocator(const Control& control, Lanes& lanes) : control_(control), lanes_(lanes) {}

  /// Adds one free slab of `bytes` bytes, or of all bytes left if these are at least `min_bytes`.
  /// Resets the segment first if there is no room and no slab is in use.
  void add_slab(std::uint32_t segment, std::uint64_t min_bytes, std::uint64_t bytes) noexcept;

 private:
  /// The bytes behind the last slab, and the cell for the next one.
  struct Room {
    std::uint32_t first_cell;
    std::uint32_t num_slabs;
    std::uint64_t offset;
    std::uint64_t bytes;
  };

  std::optional<Room> find_room(const SegmentEntry& entry, std::uint64_t min_bytes) const noexcept;
  bool is_unused(const SegmentEntry& entry) const noexcept;
  bool reset(SegmentEntry& entry) noexcept;

  const Control& control_;
  Lanes& lanes_;
};

}  // namespace flowtrain::channel
