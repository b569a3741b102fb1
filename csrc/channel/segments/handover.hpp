#pragma once

#include <cstdint>
#include <optional>

#include "channel/layout/control.hpp"
#include "channel/liveness/lanes.hpp"

namespace flowtrain::channel {

/// Tells whether a handle can leave its pool without loss: its memory goes with it.
///
/// Memory:   reads the control tables.
/// Threads:  any.
/// Progress: never waits.
/// Ordering: lane.mapped, cell.word.
/// Errors:   never throws.
class Handover {
 public:
  /// @param lane     Of the pool handle that leaves.
  /// @param creator  Whether nothing can be mapped after it, since the pool's sockets go with it.
  Handover(const Control& control, const Lanes& lanes, std::uint16_t lane, bool creator)
      : control_(control), lanes_(lanes), lane_(lane), creator_(creator) {}

  /// A segment, and a living handle that stays and still has to map it.
  struct Missing {
    std::uint32_t segment;  ///< Its index.
    std::uint16_t lane;
  };
  /// A segment for which the handle still has to wait, and who has not mapped it; nothing if the
  /// handle may leave.
  ///
  /// The creator waits until every living handle has mapped each segment that the creator or any of
  /// them has mapped. Another handle waits only for segments with items that it has mapped itself.
  /// Nobody waits for a handle that says that it does not map a segment.
  ///
  /// @param all  Of a handle that is not the creator: whether it waits until all others have mapped
  ///             them, or only until one has, which can hand out the memory.
  std::optional<Missing> find(bool all) const;
  /// Number of items in a segment that are published, or being read.
  std::uint32_t items_in(std::uint32_t segment) const noexcept;

 private:
  const Control& control_;
  const Lanes& lanes_;
  std::uint16_t lane_;
  bool creator_;
};

}  // namespace flowtrain::channel
