#pragma once

#include <algorithm>
#include <cstdint>
#include <optional>

namespace flowtrain::memory {

/// Bytes [offset, offset + bytes) of a segment.
struct Extent {
  std::uint64_t offset;
  std::uint64_t bytes;
};

/// Finds a place for a new slab between the slabs of a segment: the smallest *gap*, which is bytes
/// that no slab has, or else the smallest *stretch*, which is a gap or adjacent gaps and free
/// slabs. A gap comes first, so that free slabs stay whole for leases of their size.
///
/// Memory:   a few numbers; the slabs are passed one by one.
/// Threads:  one at a time.
/// Progress: constant time for each slab.
/// Ordering: none.
/// Errors:   never throws. Slabs that overlap or end beyond the segment, as in a damaged file, give
///           some place inside the segment.
class Fit {
 public:
  /// @param all     Bytes of the segment.
  /// @param least   Minimum bytes of the place, at least 1.
  /// @param wanted  Maximum bytes of the place, at least `least`.
  Fit(std::uint64_t all, std::uint64_t least, std::uint64_t wanted)
      : all_(all), least_(least), wanted_(wanted) {}

  /// Passes the next slab, in order of offsets.
  void pass(const Extent& slab, bool is_free) noexcept {
    const std::uint64_t offset = std::min(slab.offset, all_);
    offer(gap_, end_, offset);
    const std::uint64_t end = std::max(end_, offset + std::min(slab.bytes, all_ - offset));
    if (!is_free) {
      offer(stretch_, start_, offset);
      start_ = end;
    }
    end_ = end;
  }

  /// The place, after the last slab; nothing if no stretch has `least` bytes.
  std::optional<Extent> place() noexcept {
    offer(gap_, end_, all_);
    offer(stretch_, start_, all_);
    std::optional<Extent> best = gap_ ? gap_ : stretch_;
    if (best) best->bytes = std::min(best->bytes, wanted_);
    return best;
  }

 private:
  /// Keeps [from, to) if it is the smallest so far that suffices.
  void offer(std::optional<Extent>& best, std::uint64_t from, std::uint64_t to) const noexcept {
    if (to < from || to - from < least_ || (best && to - from >= best->bytes)) return;
    best = Extent{from, to - from};
  }

  std::uint64_t all_;
  std::uint64_t least_;
  std::uint64_t wanted_;
  std::uint64_t start_ = 0;  ///< Of the present stretch.
  std::uint64_t end_ = 0;    ///< Of the slabs passed.
  std::optional<Extent> gap_;
  std::optional<Extent> stretch_;
};

}  // namespace flowtrain::memory
