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

/// Time since it was made.
class Stopwatch {
 public:
  std::int64_t elapsed_ns() const noexcept { return now_ns() - start_ns_; }
  double elapsed_s() const noexcept { return static_cast<double>(elapsed_ns()) * 1e-9; }

 private:
  std::int64_t start_ns_ = now_ns();
};

}  // namespace flowtrain
