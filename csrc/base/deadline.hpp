#pragma once

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <functional>

namespace flowtrain {

/// Called now and then during a wait; true ends the wait early, without a result. Once true, it
/// must stay true: a call may have several waits, and one Ctrl-C ends them all.
using Interrupted = std::function<bool()>;

/// Point in monotonic time by which a wait ends. Every wait takes one.
class Deadline {
 public:
  static Deadline in(double seconds) {
    // At most a year, so that arithmetic on time points cannot overflow.
    const double bounded = std::clamp(seconds, 0.0, 3.2e7);
    const auto now = Clock::now();
    return {now, now + std::chrono::duration_cast<Clock::duration>(
                           std::chrono::duration<double>(bounded))};
  }

  /// This deadline, or `seconds` from now if that is sooner.
  Deadline within(double seconds) const {
    const Deadline soon = in(seconds);
    return {from_, std::min(when_, soon.when_)};
  }

  bool passed() const { return Clock::now() >= when_; }

  /// Time left, clamped to 0 to `max_ns`.
  std::int64_t left_ns(std::int64_t max_ns) const {
    const auto left =
        std::chrono::duration_cast<std::chrono::nanoseconds>(when_ - Clock::now()).count();
    return std::clamp<std::int64_t>(left, 0, max_ns);
  }

  /// Time since the deadline was set.
  std::int64_t waited_ns() const {
    return std::chrono::duration_cast<std::chrono::nanoseconds>(Clock::now() - from_).count();
  }
  double waited_s() const { return static_cast<double>(waited_ns()) * 1e-9; }

 private:
  using Clock = std::chrono::steady_clock;
  Deadline(Clock::time_point from, Clock::time_point when) : from_(from), when_(when) {}
  Clock::time_point from_;
  Clock::time_point when_;
};

}  // namespace flowtrain
