#pragma once

#include <cstdint>

#include "channel/control.hpp"
#include "channel/cutter.hpp"
#include "channel/magazine.hpp"

namespace flowtrain::channel {

/// Takes free slabs of a pool for one lane, and gives them back.
///
/// Memory:   cells of the control file, and a magazine of its own.
/// Threads:  one at a time.
/// Progress: lock-free. The magazine comes first, then what FreeMap says; every cell is looked at
///           before the answer is no.
/// Ordering: cell.word; an allocation is one compare-and-swap that carries its owner.
/// Errors:   never throws.
class Slabs {
 public:
  /// @param lane  Who answers for what is taken.
  /// @param home  Lane of the pool handle, whose segments come first.
  Slabs(const Control& control, Cutter& cutter, std::uint16_t lane, std::uint16_t home) noexcept;

  static constexpr std::uint32_t kNone = lockfree::FreeMap::kNone;

  /// A cell whose slab has `bytes` at least, of the smallest class that has a free one; kNone if no
  /// slab of that size is free.
  ///
  /// @param among  Segments to look in, one bit for each index.
  std::uint32_t try_take(std::uint64_t bytes, std::uint64_t among = UINT64_MAX) noexcept;
  /// The same of one segment, by its index.
  std::uint32_t try_take_in(std::uint32_t segment, std::uint64_t bytes) noexcept;
  /// Frees a cell that was taken for so many bytes; the next that are asked for go there again.
  void give_back(std::uint32_t cell, std::uint64_t bytes) noexcept;

 private:
  /// kHinted: where the map says that free cells may be. kAll: wherever they may be.
  enum class Look { kHinted, kAll };

  std::uint32_t try_all(Look look, std::uint64_t bytes, std::uint64_t among) noexcept;
  std::uint32_t try_segment(Look look, std::uint32_t segment, std::uint64_t bytes) noexcept;
  std::uint32_t try_classes(Look look, const SegmentEntry& entry, SegmentWord word,
                            std::uint64_t bytes) noexcept;
  std::uint32_t try_cuts(Look look, const SegmentEntry& entry, SegmentWord word,
                         std::uint64_t least, std::uint64_t most) const noexcept;
  template <class Take>
  std::uint32_t search(Look look, std::uint32_t first, std::uint32_t end,
                       Take&& take) const noexcept;
  std::uint32_t start_in(std::uint32_t first, std::uint32_t end) const noexcept;
  bool try_own(const SegmentEntry& entry, SegmentWord word, std::uint32_t epoch,
               std::uint32_t cell) const noexcept;

  const Control& control_;
  Cutter& cutter_;
  std::uint16_t lane_;
  std::uint16_t home_;
  std::uint32_t start_;  ///< Where searches begin, in 2^-32 of a class.
  Magazine magazine_;
};

}  // namespace flowtrain::channel
