#pragma once

#include "measure/load.hpp"

namespace flowtrain::measure {

/// Descriptors of 64 bytes per second through the shipped ring, between processes. Producers own
/// cells, write and publish them; consumers take, read and free them.
///
/// Errors: BadArgument for no producer, no consumer, or a batch that does not divide a producer's
/// share of kInFlight into two or more.
Figure ring_flow(const Load& load);

/// Nanoseconds of a round trip of one descriptor, through one ring and back through another.
Figure ring_round_trip(double seconds);

/// Items per second through a pool: leased and published in some processes, got and released in
/// others. Without `records`, no times and events are recorded; counters always are.
///
/// Errors: as ring_flow.
Figure pool_flow(const Load& load, bool records);

}  // namespace flowtrain::measure
