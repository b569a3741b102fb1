#pragma once

#include <cstdint>
#include <map>
#include <stop_token>
#include <thread>
#include <vector>

#include "os/fd.hpp"

namespace flowtrain::channel {

class Pool;

/// A handle's own thread: sees who died, has what they held taken back, maps new segments.
///
/// Memory:   nothing shared but what the pool has.
/// Threads:  one; it sleeps on the pidfds of the other participants, so that a death wakes it
///           at once, and looks at the byte locks, which are the truth, when woken and now and
///           then, for what a pidfd cannot see.
/// Progress: a reaping that has to be retried is retried within a millisecond.
/// Ordering: lane.state, as in Pool.
/// Errors:   never throws from the thread.
class Monitor {
 public:
  explicit Monitor(Pool& pool);
  ~Monitor();
  Monitor(const Monitor&) = delete;
  Monitor& operator=(const Monitor&) = delete;

  /// In a forked child the thread does not exist: forget it instead of joining it.
  void abandon() noexcept { thread_.detach(); }

 private:
  void run(const std::stop_token& stop);
  bool sleep(int timeout_ms);
  void watch_processes();
  bool bury_the_dead();
  void report_deaths();

  Pool& pool_;
  os::Fd wake_;
  std::map<std::int32_t, os::Fd> processes_;
  std::vector<std::uint32_t> reported_;
  std::jthread thread_;
};

}  // namespace flowtrain::channel
