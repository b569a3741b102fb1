#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "channel/layout/control.hpp"
#include "channel/liveness/lanes.hpp"
#include "memory/carve.hpp"

namespace flowtrain::channel {

/// Address of a byte of a segment. That of the first byte identifies one use of an entry.
constexpr memory::Address address_of(std::uint32_t index, SegmentWord word,
                                     std::uint64_t offset = 0) {
  return memory::make_address(generation_of(word), static_cast<std::uint8_t>(index + 1), offset);
}

/// The life of segments in the control file: an entry and cells are claimed (kMaking), get slabs,
/// become kLive, drain once the owner drops the segment or is gone (kDraining), and end when no
/// cell is in use (kDead).
///
/// Memory:   the entries and cells of the control file.
/// Threads:  any.
/// Progress: never waits; try_claim fails while another handle has PoolLock::kAssignment.
/// Ordering: segment.word publishes an entry. Transitions that end leasing are in one total order
///           with leases, see try_lease_segment_cell.
/// Errors:   try_claim, fill, make_live and drain throw; the rest does not.
class SegmentTable {
 public:
  SegmentTable(const Control& control, Lanes& lanes, std::string pool)
      : control_(control), lanes_(lanes), pool_(std::move(pool)) {}

  SegmentWord word(std::uint32_t index) const noexcept;
  /// Name of a segment.
  std::string name(std::uint32_t index) const;
  /// The same for messages.
  std::string text(std::uint32_t index) const { return "segment '" + name(index) + "'"; }

  /// Claims an entry and cells for a new segment, and writes its sizes, so that producers can wait
  /// for it. Returns its index, or nothing if the lock is taken.
  std::optional<std::uint32_t> try_claim(const memory::Carving& carving, std::uint16_t owner,
                                         const memory::Place& place = {});
  /// Writes the slabs of a claimed segment.
  void fill(std::uint32_t index, const memory::Carving& carving);
  /// Offers a filled segment to producers. `claimed` is the word after try_claim.
  void make_live(std::uint32_t index, SegmentWord claimed);
  /// Gives up a claimed segment that never became live.
  void cancel(std::uint32_t index, SegmentWord claimed) noexcept;

  /// Ends leasing from a segment of `owner`; existing leases and published items stay.
  void drain(std::uint32_t number, std::uint16_t owner);
  /// Drains all segments of an owner that is gone.
  void drain_all(std::uint16_t owner) noexcept;
  /// Ends the draining segments of which no cell is in use.
  void sweep() noexcept;

 private:
  void write_claim(std::uint32_t index, std::uint32_t first_cell, const memory::Carving& carving,
                   std::uint16_t owner, const memory::Place& place) noexcept;
  bool replace(std::uint32_t index, SegmentWord from, SegmentWord to) noexcept;
  bool in_use(const SegmentEntry& entry) const noexcept;

  const Control& control_;
  Lanes& lanes_;
  std::string pool_;
};

}  // namespace flowtrain::channel
