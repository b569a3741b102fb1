#pragma once

#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cstdint>
#include <string>
#include <vector>

#include "base/clock.hpp"
#include "base/cpu.hpp"
#include "base/deadline.hpp"
#include "base/error.hpp"
#include "base/math.hpp"
#include "measure/load.hpp"
#include "os/child.hpp"
#include "os/cores.hpp"
#include "os/futex.hpp"
#include "os/shared_zeros.hpp"

namespace flowtrain::measure {

/// Median time of a round in nanoseconds, over blocks of rounds so short that most blocks see no
/// interrupt. Ends once `over(blocks so far)`.
template <class Round, class Over>
double median_round_ns(Round&& round, Over&& over) {
  constexpr int kRounds = 32;
  std::array<std::int64_t, 1 << 13> blocks;  // Not allocated: see os::Child.
  std::size_t done = 0;
  while (done < blocks.size() && !over(done)) {
    const Stopwatch watch;
    for (int i = 0; i < kRounds; ++i) {
      if (!round()) break;
    }
    blocks[done++] = watch.elapsed_ns();
  }
  const auto middle = blocks.begin() + static_cast<std::ptrdiff_t>(done / 2);
  std::nth_element(blocks.begin(), middle, blocks.begin() + static_cast<std::ptrdiff_t>(done));
  return static_cast<double>(*middle) / kRounds;
}

/// Producer and consumer processes that work at the same time, each pinned to one core. A producer
/// and the consumer of the same index have different cores, if there are two or more.
///
/// Memory:   a shared control block of its own; the caller provides the data to work on.
/// Threads:  one caller.
/// Progress: waits for its workers, at most kTimeoutS a phase.
/// Ordering: group.phase: writes before a change of phase are visible after it.
/// Errors:   SystemCallError if a worker fails, which ends the others; PoolTimeout if a worker does
///           not finish a phase.
class WorkerGroup {
 public:
  WorkerGroup(std::uint32_t producers, std::uint32_t consumers)
      : producers_(producers),
        consumers_(consumers),
        zeros_(sizeof(Control), "worker group"),
        control_(*reinterpret_cast<Control*>(zeros_.data())) {}

  /// Runs `produce(i)` and `consume(i)` in the workers, and `watch` in this process. The workers'
  /// work is over when `watch` returns; its result is the figure.
  template <class Produce, class Consume, class Watch>
  Figure run(Produce&& produce, Consume&& consume, Watch&& watch) {
    const auto start = [&](std::uint32_t worker) {
      return os::Child([this, worker, &produce, &consume] {
        const bool produces = worker < producers_;
        const std::uint32_t i = produces ? worker : worker - producers_;
        join(produces ? i : i + 1);
        if (i == 0) bounce(produces, Phase::kPingBefore, Phase::kWork, control_.ping_before_ns);
        await(Phase::kWork);
        produces ? produce(i) : consume(i);
        if (i == 0) bounce(produces, Phase::kPingAfter, Phase::kOver, control_.ping_after_ns);
      });
    };
    std::vector<decltype(start(0))> workers;
    workers.reserve(producers_ + consumers_);
    for (std::uint32_t i = 0; i < producers_ + consumers_; ++i) workers.push_back(start(i));
    using Worker = decltype(start(0));
    const auto done = [&workers] {
      return static_cast<std::size_t>(std::ranges::count_if(workers, [](Worker& worker) {
        const auto end = worker.poll();
        if (end && end != Worker::End::kDone)
          throw SystemCallError("worker group: a worker failed");
        return end.has_value();
      }));
    };
    until([&] { return done() == 0 && control_.joined.load() == workers.size(); }, "start");
    enter(Phase::kPingBefore);
    until([&] { return done() == 0 && phase() == Phase::kWork; }, "answer");
    const double value = watch();
    enter(Phase::kPingAfter);
    until([&] { return done() == workers.size(); }, "end");
    return {value, control_.ping_before_ns, control_.ping_after_ns};
  }

  /// Whether the workers must stop.
  bool over() const noexcept {
    return control_.phase.load(std::memory_order_relaxed) !=
           static_cast<std::uint32_t>(Phase::kWork);
  }

 private:
  enum class Phase : std::uint32_t { kStart, kPingBefore, kWork, kPingAfter, kOver };

  struct Control {
    std::atomic<std::uint32_t> phase;
    std::atomic<std::uint32_t> joined;
    alignas(kCacheLine) std::atomic<std::uint32_t> there;
    alignas(kCacheLine) std::atomic<std::uint32_t> back;
    alignas(kCacheLine) double ping_before_ns;
    double ping_after_ns;
  };

  static constexpr double kTimeoutS = 30.0;
  static constexpr std::size_t kPingBlocks = 16;
  static constexpr std::int64_t kWaitNs = 10'000'000;

  Phase phase() const noexcept {
    return static_cast<Phase>(control_.phase.load(std::memory_order_acquire));  // sync: group.phase
  }
  void enter(Phase next) noexcept {
    control_.phase.store(static_cast<std::uint32_t>(next),
                         std::memory_order_release);  // sync: group.phase
    os::futex_wake_all(control_.phase);
  }
  void await(Phase wanted) noexcept {
    for (Phase now = phase(); now < wanted; now = phase()) {
      os::futex_wait(control_.phase, static_cast<std::uint32_t>(now), kWaitNs);
    }
  }
  template <class Condition>
  static void until(Condition&& condition, const char* what) {
    const Deadline deadline = Deadline::in(kTimeoutS);
    while (!condition()) {
      if (deadline.passed()) {
        throw PoolTimeout(std::string("worker group: the workers did not ") + what + " within " +
                          std::to_string(kTimeoutS) + " s");
      }
      ::usleep(100);
    }
  }

  void join(std::uint32_t core) {
    os::pin_to_core(core);
    control_.joined.fetch_add(1);
  }

  void bounce(bool first, Phase in, Phase next, double& result) noexcept {
    first ? ping(in, next, result) : pong(in);
  }

  void ping(Phase in, Phase next, double& result) noexcept {
    await(in);
    std::uint32_t round = control_.back.load(std::memory_order_relaxed);
    const auto round_trip = [&] {
      control_.there.store(++round, std::memory_order_release);         // sync: group.ping
      while (control_.back.load(std::memory_order_acquire) != round) {  // sync: group.ping
        pause_core();
      }
      return true;
    };
    result = median_round_ns(round_trip, [](std::size_t done) { return done == kPingBlocks; });
    enter(next);
  }

  void pong(Phase in) noexcept {
    await(in);
    std::uint32_t round = control_.back.load(std::memory_order_relaxed);
    while (phase() == in) {
      if (control_.there.load(std::memory_order_acquire) == round) {  // sync: group.ping
        pause_core();
        continue;
      }
      control_.back.store(++round, std::memory_order_release);  // sync: group.ping
    }
  }

  std::uint32_t producers_;
  std::uint32_t consumers_;
  os::SharedZeros zeros_;
  Control& control_;
};

}  // namespace flowtrain::measure
