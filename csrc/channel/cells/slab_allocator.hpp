#pragma once

#include <cstdint>

#include "channel/cells/magazine.hpp"
#include "channel/cells/slab_maker.hpp"
#include "channel/layout/control.hpp"

namespace flowtrain::channel {

/// Leases free cells, and with them their slabs, for one lane. In a segment without classes it
/// leases a free slab of the size that memory::slab_bytes_for gives, or else has SlabMaker make
/// one.
///
/// Memory:   cells of the control file, and a magazine of its own.
/// Threads:  one at a time.
/// Progress: lock-free. Tries one cell of the magazine, then the groups that FreeMap does not mark
///           as full, then all words.
/// Ordering: cell.word; a lease is one compare-and-swap that names its owner.
/// Errors:   never throws.
class SlabAllocator {
 public:
  /// @param lane  Owner of the leased cells.
  /// @param home  Lane of the pool handle, whose segments are preferred.
  SlabAllocator(const Control& control, Lanes& lanes, std::uint16_t lane,
                std::uint16_t home) noexcept;

  static constexpr std::uint32_t kNone = lockfree::FreeMap::kNone;

  /// Leases a cell with a slab of at least `bytes`, of the smallest class that has a free one.
  /// kNone if no such slab is free.
  ///
  /// @param among  Segments to search, one bit for each index.
  std::uint32_t try_lease(std::uint64_t bytes, std::uint64_t among = UINT64_MAX) noexcept;
  /// Leases a cell of one segment, given by its index.
  std::uint32_t try_lease_in(std::uint32_t segment, std::uint64_t bytes) noexcept;
  /// Frees the bytes that a leased cell's slab has beyond those that `bytes` need: see
  /// SlabMaker::shrink. A slab of a class keeps its size.
  void shrink(std::uint32_t cell, std::uint64_t bytes) noexcept { maker_.shrink(cell, bytes); }
  /// Frees a cell that was leased for `bytes`. The next lease of this size tries this cell first.
  void release(std::uint32_t cell, std::uint64_t bytes) noexcept;

 private:
  /// kHinted: search only the groups that the free map does not mark as full. kAll: search all
  /// words.
  enum class Search { kHinted, kAll };

  std::uint32_t try_segments(Search search, std::uint64_t bytes, std::uint64_t among) noexcept;
  std::uint32_t try_segment(Search search, std::uint32_t segment, std::uint64_t bytes) noexcept;
  std::uint32_t try_classes(Search search, const SegmentEntry& entry, SegmentWord word,
                            std::uint64_t bytes) noexcept;
  std::uint32_t try_on_demand(Search search, std::uint32_t segment, SegmentWord word,
                              std::uint64_t bytes) noexcept;
  template <class TryLease>
  std::uint32_t find(Search search, std::uint32_t first, std::uint32_t end,
                     TryLease&& try_lease) const noexcept;
  std::uint32_t start_in(std::uint32_t first, std::uint32_t end) const noexcept;
  bool lease(const SegmentEntry& entry, SegmentWord word, std::uint32_t cell) const noexcept;

  const Control& control_;
  SlabMaker maker_;
  std::uint16_t lane_;
  std::uint16_t home_;
  std::uint32_t start_;  ///< Where searches begin, in 2^-32 of a class.
  Magazine magazine_;
};

}  // namespace flowtrain::channel
