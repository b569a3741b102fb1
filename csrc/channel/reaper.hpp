#pragma once

#include <cstdint>

#include "channel/pool.hpp"

namespace flowtrain::channel {

/// Takes back what a dead lane held, by the rules below; true if nothing is left to do, false
/// to be called again because a living lane is in the middle of moving one of its cells.
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
///   - had published stays, if it is in the ring; if it is not, and no lane intends to take it,
///     it never was published, and is freed;
///   - intended to take is delivered again, if it is in no ring and nobody else intends to.
bool reap(Pool& pool, std::uint16_t dead) noexcept;

}  // namespace flowtrain::channel
