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

/// Threads of a handle: they notice deaths, reclaim what the dead held, and map new segments.
///
/// Memory:   nothing shared but what the pool has.
/// Threads:  two. One sleeps on the pidfds of the other participants, so that a death wakes it
///           at once, and looks at the byte locks, which are the truth, when woken and now and
///           then, for what a pidfd cannot see. The other, woken by the first, maps segments, which
///           takes long where a device registers them.
/// Progress: a reaping that has to be retried is retried within a millisecond, a mapping that
///           failed within about 100 ms.
/// Ordering: lane.state, as in Pool.
/// Errors:   never throws from a thread.
class Monitor {
 public:
  explicit Monitor(Pool& pool);
  ~Monitor();
  Monitor(const Monitor&) = delete;
  Monitor& operator=(const Monitor&) = delete;

  /// In a forked child the threads do not exist: forget them instead of joining them.
  void abandon() noexcept {
    mapper_.detach();
    thread_.detach();
  }

 private:
  void run(const std::stop_token& stop);
  void map(const std::stop_token& stop);
  bool sleep(int timeout_ms);
  void watch_processes();
  bool bury_the_dead();
  void report_deaths();

  Pool& pool_;
  os::Fd wake_;
  std::map<std::int32_t, os::Fd> processes_;
  std::vector<std::uint32_t> reported_;
  std::atomic<std::uint32_t> segments_mapped_{0};  ///< segments_version of which all are.
  std::mutex news_mutex_;
  std::condition_variable_any news_changed_;
  bool news_ = false;  ///< Whether there is something to map; under news_mutex_.
  std::jthread mapper_;
  std::jthread thread_;
};

}  // namespace flowtrain::channel
