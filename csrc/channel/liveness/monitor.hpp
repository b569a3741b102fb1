#pragma once

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <map>
#include <mutex>
#include <stop_token>
#include <thread>
#include <vector>

#include "os/fd.hpp"

namespace flowtrain::channel {

class Pool;

/// Background threads of a handle: they detect deaths, reclaim what dead lanes held, and map new
/// segments.
///
/// Memory:   nothing shared except through the pool.
/// Threads:  two. The watcher sleeps on the pidfds of the other participants, so that a death wakes
///           it at once. When woken, and from time to time, it checks the byte locks, which are
///           authoritative: a pidfd does not show every death. The mapper, woken by the watcher,
///           maps segments, which takes long if a device registers them.
/// Progress: an incomplete recovery is retried within a millisecond, a failed mapping within about
///           100 ms.
/// Ordering: lane.state, as in Lanes.
/// Errors:   never throws from a thread.
class Monitor {
 public:
  explicit Monitor(Pool& pool);
  ~Monitor();
  Monitor(const Monitor&) = delete;
  Monitor& operator=(const Monitor&) = delete;

  /// In a forked child the threads do not exist: detaches them instead of joining them.
  void abandon() noexcept {
    mapper_.detach();
    watcher_.detach();
  }

 private:
  void watch(const std::stop_token& stop);
  void map_segments(const std::stop_token& stop);
  bool sleep(int timeout_ms);
  void update_pidfds();
  bool reclaim_dead();
  void report_deaths();

  Pool& pool_;
  os::Fd wake_;
  std::map<std::int32_t, os::Fd> processes_;
  std::vector<std::uint32_t> reported_;
  std::atomic<std::uint32_t> mapped_version_{0};  ///< segments_version whose segments are mapped.
  std::mutex mapper_mutex_;
  std::condition_variable_any mapper_woken_;
  bool map_requested_ = false;  ///< Under mapper_mutex_.
  std::jthread mapper_;
  std::jthread watcher_;
};

}  // namespace flowtrain::channel
