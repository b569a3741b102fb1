#pragma once

#include <algorithm>
#include <atomic>
#include <cstdint>

#include "base/clock.hpp"
#include "base/cpu.hpp"
#include "base/deadline.hpp"
#include "base/math.hpp"
#include "os/futex.hpp"

namespace flowtrain::os {

/// How long one waiter spins before it sleeps: waking a sleeper costs tens of microseconds, so
/// whoever has been waiting for no longer than that lately spins that long. It never yields: on a
/// busy core that hands out whole time slices, where a sleeper would be woken at once.
class Spin {
 public:
  std::int64_t budget_ns() const { return budget_ns_.load(std::memory_order_relaxed); }
  void learn(std::int64_t waited_ns) {
    const std::int64_t next =
        waited_ns > kMostNs / 2 ? kLeastNs : std::max(kLeastNs, 2 * waited_ns);
    budget_ns_.store(next, std::memory_order_relaxed);
  }

 private:
  static constexpr std::int64_t kLeastNs = 20'000;
  static constexpr std::int64_t kMostNs = 100'000;
  std::atomic<std::int64_t> budget_ns_{kLeastNs};
};

/// Something that may have changed: waiters spin, then sleep on a futex; notifying costs one
/// fence and one load while nobody sleeps.
///
/// Memory:   placed by the caller, also in shared memory; zero bytes are a valid event.
/// Threads:  any number, in any processes.
/// Progress: notify is wait-free. A waiter that dies asleep, or gives up, costs one wake that
///           nobody hears. A notifier that dies before its wake costs a sleeper kLongestSleepNs.
/// Ordering: what was done before notify is seen by the predicate of a waiter it wakes.
/// Errors:   never throws; a wait that ran out returns false.
///
/// The word counts up, and is odd from when a waiter announces that it is about to sleep until a
/// notifier finds it so. There is no count of waiters, since nobody could take a dead one off it.
///
/// A waiter announces itself, fences, then looks; a notifier changes what is looked at, fences,
/// then reads the word. By the order of the two fences, either the look sees the change, or the
/// notifier reads the announcement or what came after it in the word's own order. What it then
/// reads is
///   - odd: it makes the word even and wakes;
///   - even: another notifier did so after the announcement. It wakes the waiter, or the waiter no
///     longer finds the value to sleep on. Either way the waiter announces itself anew, which the
///     first notifier did not read, so that this time the look sees the change.
/// The fences order all of this; the accesses to the word need no order of their own.
class alignas(kCacheLine) Event {
 public:
  void notify() noexcept {
    // Pairs with the fence in wait.
    std::atomic_thread_fence(std::memory_order_seq_cst);
    notify_after_fence();
  }
  /// The same for a caller with such a fence of its own behind what it did.
  void notify_after_fence() noexcept {
    std::uint32_t seen = word_.load(std::memory_order_relaxed);
    if (seen % 2 == 0) return;
    // Where it fails another notifier was faster; it may die before it wakes anybody.
    word_.compare_exchange_strong(seen, seen + 1, std::memory_order_relaxed);
    futex_wake_all(word_);
  }

  /// Waits until `ready()` is true or the deadline passes; the last word is `ready`'s.
  template <class Ready>
  bool wait(const Deadline& deadline, Spin& spin, Ready&& ready) noexcept {
    if (ready()) return true;
    const Stopwatch stopwatch;
    const std::int64_t budget_ns = spin.budget_ns();
    for (std::int64_t waited_ns = 0; waited_ns < budget_ns; waited_ns = stopwatch.elapsed_ns()) {
      pause_core();
      if (!ready()) continue;
      spin.learn(stopwatch.elapsed_ns());
      return true;
    }
    while (!deadline.passed()) {
      const std::uint32_t announced = word_.fetch_or(1, std::memory_order_relaxed) | 1;
      // Pairs with the fence in notify.
      std::atomic_thread_fence(std::memory_order_seq_cst);
      const bool done = ready();
      if (!done) futex_wait(word_, announced, deadline.left_ns(kLongestSleepNs));
      if (!done && !ready()) continue;
      spin.learn(stopwatch.elapsed_ns());
      return true;
    }
    return ready();
  }

 private:
  static constexpr std::int64_t kLongestSleepNs = 100'000'000;

  std::atomic<std::uint32_t> word_{0};
};

static_assert(sizeof(Event) == kCacheLine);

}  // namespace flowtrain::os
