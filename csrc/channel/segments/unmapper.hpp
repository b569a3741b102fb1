#pragma once

#include <atomic>
#include <condition_variable>
#include <memory>
#include <mutex>
#include <vector>

#include "memory/resource.hpp"

namespace flowtrain::channel {

/// Destroys the memory of one handle, on a thread of its own if that may take long: ending a
/// device's registration can take seconds, and the last reference to a memory may be dropped by any
/// thread, with any lock held.
///
/// Memory:   shared by the handle and its memory, so that it outlives both.
/// Threads:  any; a worker thread runs while there is memory to destroy.
/// Progress: dropping a reference takes a short lock, and starts the worker if none runs. Memory of
///           the host with nothing attached is unmapped at once.
/// Ordering: as memory::Memory.
/// Errors:   if no thread can be started, the caller destroys the memory.
class Unmapper : public std::enable_shared_from_this<Unmapper> {
 public:
  /// Shares memory. The thread that drops the last reference does not wait for its end.
  std::shared_ptr<const memory::Memory> share(std::unique_ptr<const memory::Memory> memory);
  /// Waits until all memory dropped so far is destroyed.
  void wait();
  /// In a forked child, which has no worker: callers destroy memory themselves.
  void abandon() noexcept { abandoned_.store(true, std::memory_order_relaxed); }

 private:
  void destroy(std::unique_ptr<const memory::Memory> memory) noexcept;
  void work() noexcept;

  std::atomic<bool> abandoned_{false};
  std::mutex mutex_;
  std::condition_variable finished_;
  std::vector<std::unique_ptr<const memory::Memory>> queue_;
  bool working_ = false;  ///< Whether the worker runs.
};

}  // namespace flowtrain::channel
