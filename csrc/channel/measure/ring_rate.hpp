#pragma once

#include <cstdint>

namespace flowtrain::channel::measure {

/// Who moves descriptors through one ring, and how.
struct RingLoad {
  std::uint32_t producers;
  std::uint32_t consumers;
  std::uint32_t batch;  ///< Descriptors at a time; a power of two, at most 128.
  bool runs;            ///< One compare-and-swap for a batch, else one for each descriptor.
  double seconds;
};

/// Descriptors of 64 bytes per second that threads move through the shipped ring. Each producer
/// uses its cells round and round, so that no allocation is measured.
///
/// Errors: BadArgument for no producer, no consumer, or a batch that is none of the above.
double ring_rate(const RingLoad& load);

}  // namespace flowtrain::channel::measure
