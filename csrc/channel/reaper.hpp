#pragma once

#include <cstdint>
#include <functional>

#include "channel/control.hpp"

namespace flowtrain::channel {

/// Takes back what a dead lane held, by the rules below; true if nothing is left to do, false
/// to be called again because a living lane is in the middle of moving one of the cells.
///
/// Memory:   the pool's control tables.
/// Threads:  one reaper at a time over all processes, by the reaper's byte lock.
/// Progress: never waits for another participant.
/// Ordering: cell.word, ring.slot, lane.pin and lane.cin, as in IndexRing.
/// Errors:   never throws.
///
/// A cell that the dead lane
///   - was writing is freed;
///   - was reading is delivered again;
///   - had marked as published stays, if it is in the ring, and is left to the rule below, if a
///     dead lane intended to take it; else that publishing never happened: it is freed, or, where
///     another lane had published it before, published again;
///   - intended to take is delivered again, if it is in no ring and nobody alive is moving it.
///
/// @param mine   Lane of the caller, under which cells are delivered again.
/// @param alive  Whether a lane's process lives, by the kernel's word.
bool reap(const Control& control, std::uint16_t dead, std::uint16_t mine,
          const std::function<bool(std::uint16_t)>& alive) noexcept;

}  // namespace flowtrain::channel
