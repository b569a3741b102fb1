#include "gateway/watch.hpp"

#include <unistd.h>

#include "os/futex.hpp"
#include "os/thread.hpp"

namespace flowtrain::gateway {
namespace {

constexpr std::int64_t kIdleNs = 1'000'000'000;  // Between looks at the stop of an idle thread.

}  // namespace

void wake(const os::Fd& eventfd) noexcept {
  const std::uint64_t one = 1;
  // Fails only if the counter is at its maximum, which is readable as well.
  [[maybe_unused]] const auto written = ::write(eventfd.get(), &one, sizeof(one));
}

Watch::Watch(os::Event& event, const os::Fd& wakes, const std::string& what)
    : event_(event),
      wakes_(wakes),
      thread_(os::start_thread(what, "waits for items and free slabs",
                               [this](const std::stop_token& stop) { work(stop); })) {}

Watch::~Watch() {
  thread_.request_stop();
  handed_.fetch_add(2, std::memory_order_release);  // sync: watch.handed
  os::futex_wake_all(handed_);
  event_.notify();
}

void Watch::arm() noexcept {
  const std::uint32_t announced = event_.announce();
  // The same one: nobody was notified since, and the thread sleeps on it.
  if (announced == armed_) return;
  armed_ = announced;
  handed_.store(announced, std::memory_order_release);  // sync: watch.handed
  os::futex_wake_all(handed_);
}

void Watch::work(const std::stop_token& stop) noexcept {
  std::uint32_t done = 0;
  for (;;) {
    const std::uint32_t announced = handed_.load(std::memory_order_acquire);  // sync: watch.handed
    if (stop.stop_requested()) return;
    if (announced == done) {
      os::futex_wait(handed_, done, kIdleNs);
      continue;
    }
    if (!event_.sleep(announced)) continue;
    done = announced;
    wake(wakes_);
  }
}

}  // namespace flowtrain::gateway
