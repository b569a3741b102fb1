// Waiters are woken, and a waiter that died asleep costs one superfluous wake.

#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <chrono>
#include <cstring>
#include <new>
#include <thread>
#include <vector>

#include "check.hpp"
#include "os/event.hpp"
#include "os/shared_zeros.hpp"

using namespace flowtrain;
using namespace flowtrain::os;

namespace {

using Bytes = std::array<unsigned char, sizeof(Event)>;

Bytes bytes_of(const Event& event) {
  Bytes bytes;
  std::memcpy(bytes.data(), static_cast<const void*>(&event), sizeof(event));
  return bytes;
}

/// Kills a process while it sleeps on the event.
void kill_a_sleeper(Event& event) {
  const Bytes before = bytes_of(event);
  const pid_t sleeper = ::fork();
  if (sleeper == 0) {
    Spin spin;
    event.wait(Deadline::in(60), spin, []() noexcept { return false; });
    ::_exit(0);
  }
  while (bytes_of(event) == before) std::this_thread::sleep_for(std::chrono::milliseconds(1));
  std::this_thread::sleep_for(std::chrono::milliseconds(5));
  ::kill(sleeper, SIGKILL);
  ::waitpid(sleeper, nullptr, 0);
}

void a_waiter_killed_asleep_costs_one_wake() {
  const SharedZeros memory(sizeof(Event), "event");
  auto& event = *new (memory.data()) Event;
  for (int times = 0; times < 2; ++times) {
    kill_a_sleeper(event);
    const Bytes announced = bytes_of(event);
    event.notify();
    const Bytes first = bytes_of(event);
    CHECK(first != announced);
    // Without a sleeper, notify writes nothing, and so makes no system call.
    event.notify();
    CHECK(bytes_of(event) == first);
  }
}

/// Every waiter sees every round, though all sleep and all are woken by one notify.
void no_wake_is_lost() {
  constexpr int kWaiters = 3, kRounds = 2000;
  Event begun, done;
  std::atomic<int> round{0}, seen{0};
  std::vector<std::jthread> waiters;
  for (int i = 0; i < kWaiters; ++i) {
    waiters.emplace_back([&] {
      Spin spin;
      for (int next = 1; next <= kRounds; ++next) {
        CHECK(begun.wait(Deadline::in(60), spin, [&]() noexcept { return round.load() >= next; }));
        seen.fetch_add(1);
        done.notify();
      }
    });
  }
  Spin spin;
  for (int next = 1; next <= kRounds; ++next) {
    round.store(next);
    begun.notify();
    CHECK(done.wait(Deadline::in(60), spin,
                    [&]() noexcept { return seen.load() >= next * kWaiters; }));
  }
}

void a_wait_that_times_out_returns_false() {
  Event event;
  Spin spin;
  CHECK(!event.wait(Deadline::in(0.01), spin, []() noexcept { return false; }));
}

}  // namespace

int main() {
  a_waiter_killed_asleep_costs_one_wake();
  no_wake_is_lost();
  a_wait_that_times_out_returns_false();
}
