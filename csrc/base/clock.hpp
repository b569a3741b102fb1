#pragma once

#include <chrono>
#include <cstdint>

namespace flowtrain {

/// Monotonic time in nanoseconds, the same clock in every process of the host.
inline std::int64_t now_ns() noexcept {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(
             std::chrono::steady_clock::now().time_since_epoch())
      .count();
}

}  // namespace flowtrain
