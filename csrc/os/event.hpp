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

/// Time that a waiter spins before it sleeps. Waking a sleeper costs tens of microseconds, so a
/// waiter whose last wait was short spins for twice as long as that wait, within limits. It never
/// yields, since on a busy core a yield can take a whole time slice, while a sleeper is woken at
/// once.
class Spin {
 public:
  std::int64_t budget_ns() const { return budget_ns_.load(std::memory_order_relaxed); }
  void learn(std::int64_t waited_ns) {
    const std::int64_t next = waited_ns > kMaxNs / 2 ? kMinNs : std::max(kMinNs, 2 * waited_ns);
    budget_ns_.store(next, std::memory_order_relaxed);
  }

 private:
  static constexpr std::int64_t kMinNs = 20'000;
  static constexpr std::int64_t kMaxNs = 100'000;
  std::atomic<std::int64_t> budget_ns_{kMinNs};
};

/// A condition that processes wait for: waiters spin, then sleep on a futex. While no waiter
/// sleeps, notify costs one fence and one load.
///
/// Memory:   placed by the caller, also in shared memory; zero bytes are a valid event.
/// Threads:  any number, in any processes.
/// Progress: notify is wait-free. A waiter that dies asleep, or gives up, costs one superfluous
///           wake. A notifier that dies before its wake delays a sleeper by kMaxSleepNs.
/// Ordering: writes before notify are visible to the predicate of a waiter that it wakes.
/// Errors:   never throws; a wait that times out returns false.
///
/// The word counts up. It is odd from the moment a waiter announces that it will sleep until a
/// notifier makes it even. There is no count of waiters: a dead waiter could not be subtracted.
///
/// A waiter announces itself, fences, then calls its predicate; a notifier writes the data that the
/// predicate reads, fences, then reads the word. By the order of the two fences, either the
/// predicate sees the data, or the notifier reads the announcement or a later value of the word.
/// If the notifier reads
///   - an odd value, it makes the word even and wakes;
///   - an even value, another notifier made it even after the announcement. That notifier wakes the
///     waiter, or the waiter finds the word changed and does not sleep. Either way the waiter
///     announces itself again. The first notifier did not read this second announcement, so this
///     time the predicate sees the data.
/// The fences alone give this order; accesses to the word are relaxed.
class alignas(kCacheLine) Event {
 public:
  void notify() noexcept {
    // Pairs with the fence in wait.
    std::atomic_thread_fence(std::memory_order_seq_cst);
    notify_after_fence();
  }
  /// As notify, for a caller that has already executed such a fence after its writes.
  void notify_after_fence() noexcept {
    std::uint32_t seen = word_.load(std::memory_order_relaxed);
    if (seen % 2 == 0) return;
    // If it fails, another notifier was faster, but may die before its wake: so wake in any case.
    word_.compare_exchange_strong(seen, seen + 1, std::memory_order_relaxed);
    futex_wake_all(word_);
  }

  /// Waits until `ready()` is true or the deadline passes. Returns the last value of `ready()`.
  template <class Ready>
  bool wait(const Deadline& deadline, Spin& spin, Ready&& ready) noexcept {
    if (ready()) return true;
    const Stopwatch watch;
    const std::int64_t budget_ns = spin.budget_ns();
    for (std::int64_t waited_ns = 0; waited_ns < budget_ns; waited_ns = watch.elapsed_ns()) {
      pause_core();
      if (!ready()) continue;
      spin.learn(watch.elapsed_ns());
      return true;
    }
    while (!deadline.passed()) {
      const std::uint32_t announced = announce();
      const bool done = ready();
      if (!done) futex_wait(word_, announced, deadline.left_ns(kMaxSleepNs));
      if (!done && !ready()) continue;
      spin.learn(watch.elapsed_ns());
      return true;
    }
    return ready();
  }

  /// The parts of a wait, for two threads that share it: one announces that the other will sleep
  /// and calls the predicate, the other sleeps if the predicate was false.
  std::uint32_t announce() noexcept {
    const std::uint32_t announced = word_.fetch_or(1, std::memory_order_relaxed) | 1;
    // Pairs with the fence in notify.
    std::atomic_thread_fence(std::memory_order_seq_cst);
    return announced;
  }
  /// Sleeps until a notification after the announcement, at most kMaxSleepNs. True if there was
  /// one.
  bool sleep(std::uint32_t announced) noexcept {
    futex_wait(word_, announced, kMaxSleepNs);
    return word_.load(std::memory_order_relaxed) != announced;
  }

 private:
  static constexpr std::int64_t kMaxSleepNs = 100'000'000;

  std::atomic<std::uint32_t> word_{0};
};

static_assert(sizeof(Event) == kCacheLine);

}  // namespace flowtrain::os
