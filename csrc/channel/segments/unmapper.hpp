#pragma once

#include <atomic>
#include <condition_variable>
#include <memory>
#include <mutex>
#include <vector>

#include "os/mapping.hpp"

namespace flowtrain::channel {

/// Destroys the mappings of one handle that have something attached, on a thread of its own: ending
/// a device's registration can take seconds, and the last reference to a mapping may be dropped by
/// any thread, with any lock held.
///
/// Memory:   shared by the handle and its mappings, so that it outlives both.
/// Threads:  any; a worker thread runs while there are mappings to destroy.
/// Progress: dropping a reference takes a short lock, and starts the worker if none runs. A mapping
///           with nothing attached is unmapped at once.
/// Ordering: what is attached ends before its memory is unmapped.
/// Errors:   if no thread can be started, the caller destroys the mapping.
class Unmapper : public std::enable_shared_from_this<Unmapper> {
 public:
  /// Shares a mapping. The thread that drops the last reference does not wait for its end.
  std::shared_ptr<const os::Mapping> share(os::Mapping mapping);
  /// Waits until all mappings dropped so far are destroyed.
  void wait();
  /// In a forked child, which has no worker: callers destroy mappings themselves.
  void abandon() noexcept { abandoned_.store(true, std::memory_order_relaxed); }

 private:
  void destroy(std::unique_ptr<const os::Mapping> mapping) noexcept;
  void work() noexcept;

  std::atomic<bool> abandoned_{false};
  std::mutex mutex_;
  std::condition_variable finished_;
  std::vector<std::unique_ptr<const os::Mapping>> queue_;
  bool working_ = false;  ///< Whether the worker runs.
};

}  // namespace flowtrain::channel
