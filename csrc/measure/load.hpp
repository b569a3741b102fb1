#pragma once

#include <cstdint>

namespace flowtrain::measure {

/// Descriptors that are under way at most, whatever the queue.
inline constexpr std::uint32_t kInFlight = 1024;

/// Who moves descriptors through a queue, and how.
struct Load {
  std::uint32_t producers;
  std::uint32_t consumers;
  std::uint32_t batch;  ///< Descriptors at a time.
  double seconds;
  std::uint32_t pauses = 1;  ///< Of a core, between two looks of who waits.
  bool shared = false;  ///< Whether others might allocate the cells of a sender, if it has any.
};

/// A figure, and a bare ping-pong of one word between the same two cores before and after it:
/// cores of a virtual machine move, and figures compare only where these agree.
struct Slice {
  double value;
  double ping_before_ns;
  double ping_after_ns;
};

}  // namespace flowtrain::measure
