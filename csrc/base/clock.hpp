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

/// Measures the time since it was made.
class Stopwatch {
 public:
  std::int64_t elapsed_ns() const noexcept { return now_ns() - start_ns_; }

 private:
  std::int64_t start_ns_ = now_ns();
};

}  // namespace flowtrain
