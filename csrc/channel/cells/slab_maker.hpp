#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "channel/layout/control.hpp"
#include "channel/liveness/lanes.hpp"
#include "memory/fit.hpp"

namespace flowtrain::channel {

/// Makes slabs on demand in segments without classes, for one lane: behind the last slab, or, once
/// the segment's end is reached, where memory::Fit finds a place between the slabs in use. Free
/// slabs in that place are *dissolved*: their bytes become part of the new slab or of a gap.
///
/// Gaps are recorded nowhere: each byte that no slab has is free. So a slab is shortened in place.
/// A slab is changed only by a lane that leased its cell, and old slabs are dissolved before the
/// new one is written. So a process that dies at any point leaves no byte with two slabs, and no
/// byte and no cell lost: recovery frees its cells.
///
/// Memory:   a segment's cells. Those from `num_slabs` on have no slab; of those before, the cells
///           whose slab_bytes are 0. A list of slabs in the lane's process.
/// Threads:  one at a time over all processes, by PoolLock::kAssignment; others lease and release
///           meanwhile. New segments get their entry and cells under the same lock. So if a segment
///           ends during a call, its entry and cells are not reused before the call returns.
/// Progress: never waits. Reads the slabs of the segment, and sorts those made since its last call,
///           except for a slab behind the last one. A process that stops during a call blocks
///           further calls and new segments, but no slab that exists.
/// Ordering: cell.word publishes a slab; segment.slabs the cells that may have one.
/// Errors:   returns kNone if there is no place or cell, or if other processes were faster. If the
///           list cannot grow, the process ends.
class SlabMaker {
 public:
  static constexpr std::uint32_t kNone = lockfree::FreeMap::kNone;

  /// @param lane  Owner of the leased cells.
  SlabMaker(const Control& control, Lanes& lanes, std::uint16_t lane)
      : control_(control), lanes_(lanes), lane_(lane) {}

  /// Leases a cell with a new slab of `wanted` bytes, or of fewer, at least `least`, if there is no
  /// room for these. Both are whole pages.
  ///
  /// @param segment     Its index.
  /// @param word        The segment's word when the caller read it.
  /// @param free_bytes  Bytes of free slabs that the caller saw. If these and the gaps are less
  ///                    than needed, nothing is searched.
  std::uint32_t make(std::uint32_t segment, SegmentWord word, std::uint64_t least,
                     std::uint64_t wanted, std::uint64_t free_bytes) noexcept;

  /// Shortens the slab of a cell that this lane has leased to the size for `bytes`; the rest
  /// becomes a gap. A slab of a class keeps its size, and so does one in memory of a device, and
  /// one while another process makes a slab or a segment for longer than some microseconds.
  void shrink(std::uint32_t cell, std::uint64_t bytes) noexcept;

  /// If a segment lacks cells rather than memory for a lease of `bytes`, which limit that is, and
  /// the way out; for messages.
  static std::string shortage(const Control& control, std::uint32_t segment, std::uint64_t bytes);

 private:
  /// A segment, and the slab to be made in it.
  struct Task {
    SegmentEntry& entry;
    std::uint32_t segment;
    SegmentWord word;
    std::uint64_t least;
    std::uint64_t wanted;
  };

  /// The first cell without a slab, and the bytes behind the last slab.
  struct End {
    std::uint32_t cell;
    memory::Extent place;
  };

  static void subtract(SegmentEntry& entry, std::uint64_t bytes) noexcept;
  std::optional<End> end_of_slabs(const Task& task) const noexcept;
  std::optional<memory::Extent> find_place(const Task& task) noexcept;
  void list_slabs(const Task& task) noexcept;
  bool try_lock() noexcept;
  std::uint32_t make_locked(const Task& task) noexcept;
  std::uint32_t make_at_end(const Task& task, const End& end) noexcept;
  std::uint32_t make_at(const Task& task, const memory::Extent& place) noexcept;
  bool lease_slabs_in(const Task& task, const memory::Extent& place) noexcept;
  bool lease_spare(const Task& task) noexcept;
  bool lease(const Task& task, std::uint32_t cell) noexcept;
  void dissolve(const Task& task) noexcept;
  void write(const Task& task, std::uint32_t cell, const memory::Extent& place) noexcept;
  void trim(const Task& task) noexcept;

  memory::Extent extent_of(std::uint32_t cell) const noexcept;

  const Control& control_;
  Lanes& lanes_;
  std::uint16_t lane_;
  std::vector<std::uint64_t> slabs_;   ///< By list_slabs: `[offset:40 | cell:24]`, in order.
  std::vector<bool> listed_;           ///< By list_slabs: the cells whose slab was there before.
  std::vector<std::uint32_t> leased_;  ///< Cells leased for the new slab.
};

}  // namespace flowtrain::channel
