#pragma once

#include "measure/load.hpp"

namespace flowtrain::measure {

/// Descriptors of 64 bytes per second through the shipped ring, between processes: each owns cells,
/// writes, publishes, or takes, reads, frees.
///
/// Errors: BadArgument for no producer, no consumer, or a batch that a producer's share of
/// kInFlight does not hold twice, or that does not divide it.
Slice ring_flow(const Load& load);

/// Nanoseconds that one descriptor takes there through one ring and back through another.
Slice ring_round_trip(double seconds);

/// Items per second through a pool, leased, published, got and released between processes; with
/// records as shipped, or without any, to see what they cost.
///
/// Errors: as ring_flow.
Slice pool_flow(const Load& load, bool records);

}  // namespace flowtrain::measure
