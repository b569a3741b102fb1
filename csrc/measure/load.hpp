#pragma once

#include <cstdint>

namespace flowtrain::measure {

/// Capacity of every queue, in descriptors.
inline constexpr std::uint32_t kInFlight = 1024;

/// Processes that move descriptors through a queue, and how.
struct Load {
  std::uint32_t producers;
  std::uint32_t consumers;
  std::uint32_t batch;  ///< Descriptors per send.
  double seconds;
  std::uint32_t pauses = 1;  ///< Pauses of a core between two polls of a waiter.
  bool shared = false;       ///< Lease cells by compare-and-swap, as if other senders could.
};

/// A figure measured between two ping-pong runs on the same cores. Cores of a virtual machine may
/// be moved, so figures compare only if their ping-pongs agree.
struct Figure {
  double value;
  double ping_before_ns;
  double ping_after_ns;
};

}  // namespace flowtrain::measure
