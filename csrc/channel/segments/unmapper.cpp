#include "channel/segments/unmapper.hpp"

#include <exception>
#include <utility>

#include "os/thread.hpp"

namespace flowtrain::channel {

std::shared_ptr<const memory::Memory> Unmapper::share(
    std::unique_ptr<const memory::Memory> memory) {
  return {memory.release(), [self = shared_from_this()](const memory::Memory* last) {
            self->destroy(std::unique_ptr<const memory::Memory>(last));
          }};
}

void Unmapper::destroy(std::unique_ptr<const memory::Memory> memory) noexcept {
  // Memory that is not queued here is destroyed on return, after the lock is released.
  if (memory->ends_at_once() || abandoned_.load(std::memory_order_relaxed)) return;
  try {
    const std::lock_guard lock(mutex_);
    if (!working_) {
      os::start_thread("pool", "unmaps memory", [self = shared_from_this()](auto&) {
        self->work();
      }).detach();
    }
    working_ = true;
    queue_.push_back(std::move(memory));
  } catch (const std::exception&) {
    // Out of threads or memory.
  }
}

void Unmapper::work() noexcept {
  std::unique_lock lock(mutex_);
  while (!queue_.empty()) {
    auto dropped = std::exchange(queue_, {});
    lock.unlock();
    dropped.clear();
    lock.lock();
  }
  working_ = false;
  finished_.notify_all();
}

void Unmapper::wait() {
  std::unique_lock lock(mutex_);
  finished_.wait(lock, [this] { return !working_; });
}

}  // namespace flowtrain::channel
