// Notifications of events in shared memory that make a descriptor readable.

#include <poll.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <atomic>
#include <random>
#include <thread>

#include "check.hpp"
#include "gateway/watch.hpp"

using namespace flowtrain;

namespace {

bool is_readable(const os::Fd& fd, int timeout_ms) {
  pollfd ready{fd.get(), POLLIN, 0};
  return ::poll(&ready, 1, timeout_ms) == 1;
}

void drain(const os::Fd& fd) {
  std::uint64_t count;
  static_cast<void>(::read(fd.get(), &count, sizeof(count)));
}

os::Fd descriptor() { return os::Fd(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)); }

void only_an_armed_watch_tells() {
  os::Event event;
  const os::Fd fd = descriptor();
  gateway::Watch watch(event, fd, "test");
  event.notify();
  CHECK(!is_readable(fd, 20));
  watch.arm();
  watch.arm();
  CHECK(!is_readable(fd, 20));
  event.notify();
  CHECK(is_readable(fd, 60'000));
  drain(fd);
  event.notify();
  CHECK(!is_readable(fd, 20));
}

/// A waiter that arms, looks and sleeps misses nothing, however the other side hits it.
void no_notification_is_missed() {
  constexpr std::uint32_t kCount = 20000;
  os::Event event;
  const os::Fd fd = descriptor();
  std::atomic<std::uint32_t> sent{0}, seen{0};
  gateway::Watch watch(event, fd, "test");
  std::jthread sender([&] {
    std::mt19937 random(1);
    for (std::uint32_t i = 1; i <= kCount; ++i) {
      sent.store(i, std::memory_order_relaxed);
      event.notify();
      // Mostly waits for the waiter, which so sleeps each time.
      while (random() % 8 != 0 && seen.load(std::memory_order_relaxed) < i) {
        std::this_thread::yield();
      }
    }
  });
  while (seen < kCount) {
    watch.arm();
    if (const std::uint32_t now = sent.load(std::memory_order_relaxed); now != seen) {
      seen = now;
      continue;
    }
    CHECK(is_readable(fd, 60'000));
    drain(fd);
  }
}

}  // namespace

int main() {
  only_an_armed_watch_tells();
  no_notification_is_missed();
}
