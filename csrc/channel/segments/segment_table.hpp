#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "base/deadline.hpp"
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
/// Progress: claim waits for PoolLock::kAssignment, at most kLockTimeoutS. The rest never waits.
/// Ordering: segment.word publishes an entry. Transitions that end leasing are in one total order
///           with leases, see try_lease_segment_cell.
/// Errors:   claim, fill, make_live and drain throw; drain_all and sweep do not.
class SegmentTable {
 public:
  SegmentTable(const Control& control, Lanes& lanes, std::string pool)
      : control_(control), lanes_(lanes), pool_(std::move(pool)) {}

  SegmentWord word(std::uint32_t index) const noexcept;
  /// Name of a segment for messages.
  std::string text(std::uint32_t index) const;

  /// Claims an entry and cells for a new segment. Returns its index, or nothing if `interrupted`
  /// ended the wait for the lock.
  std::optional<std::uint32_t> claim(std::uint32_t cells, std::uint16_t owner,
                                     const Interrupted& interrupted);
  /// Writes sizes and slabs of a claimed segment.
  void fill(std::uint32_t index, const memory::Carving& carving);
  /// Offers a filled segment to producers. `claimed` is the word after claim.
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
  static constexpr double kLockTimeoutS = 10.0;  ///< Others hold the lock for microseconds.

  struct Place {
    std::uint32_t entry;
    std::uint32_t first_cell;
    std::uint32_t num_cells;
  };
  void write_claim(const Place& place, std::uint16_t owner) noexcept;
  bool replace(std::uint32_t index, SegmentWord from, SegmentWord to) noexcept;
  bool in_use(const SegmentEntry& entry) const noexcept;

  const Control& control_;
  Lanes& lanes_;
  std::string pool_;
};

}  // namespace flowtrain::channel
