#pragma once

#include <pthread.h>
#include <sched.h>

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
#include "os/futex.hpp"
#include "os/shared_zeros.hpp"

namespace flowtrain::measure {

/// Median time of a round in nanoseconds, over blocks of rounds short enough that most see no
/// interrupt, until `over`.
template <class Round, class Over>
double median_round_ns(Round&& round, Over&& over) {
  constexpr int kRounds = 32;
  std::array<std::int64_t, 1 << 13> blocks;  // Not allocated: see os::Child.
  std::size_t done = 0;
  while (done < blocks.size() && !over(done)) {
    const std::int64_t start = now_ns();
    for (int i = 0; i < kRounds; ++i) {
      if (!round()) break;
    }
    blocks[done++] = now_ns() - start;
  }
  const auto middle = blocks.begin() + static_cast<std::ptrdiff_t>(done / 2);
  std::nth_element(blocks.begin(), middle, blocks.begin() + static_cast<std::ptrdiff_t>(done));
  return static_cast<double>(*middle) / kRounds;
}

/// Processes that work together for a while, each kept on one core: a producer and the consumer
/// of the same number on different cores, where there are some.
///
/// Memory:   a board of its own that they share; what they work on is the caller's.
/// Threads:  one caller.
/// Progress: waits for its members, at most kPatienceS a phase.
/// Ordering: crew.phase: what a member wrote before it is seen after it.
/// Errors:   SystemCallError where a member failed, which ends the others; PoolTimeout where one
///           did not do its part.
class Crew {
 public:
  Crew(std::uint32_t producers, std::uint32_t consumers)
      : producers_(producers),
        consumers_(consumers),
        zeros_(sizeof(Board), "crew"),
        board_(*reinterpret_cast<Board*>(zeros_.data())) {}

  /// Runs `produce(i)` and `consume(i)` in the members until `over`, and `watch` here, whose end
  /// is theirs; its result is the figure.
  template <class Produce, class Consume, class Watch>
  Slice run(Produce&& produce, Consume&& consume, Watch&& watch) {
    const auto start = [&](std::uint32_t turn) {
      return os::Child([this, turn, &produce, &consume] {
        const bool sends = turn < producers_;
        const std::uint32_t i = sends ? turn : turn - producers_;
        join(sends ? i : i + 1);
        if (i == 0) bounce(sends, Phase::kPingBefore, Phase::kWork, board_.ping_before_ns);
        await(Phase::kWork);
        sends ? produce(i) : consume(i);
        if (i == 0) bounce(sends, Phase::kPingAfter, Phase::kOver, board_.ping_after_ns);
      });
    };
    std::vector<decltype(start(0))> members;
    members.reserve(producers_ + consumers_);
    for (std::uint32_t i = 0; i < producers_ + consumers_; ++i) members.push_back(start(i));
    using Member = decltype(start(0));
    const auto done = [&members] {
      return static_cast<std::size_t>(std::ranges::count_if(members, [](Member& member) {
        const auto end = member.poll();
        if (end && end != Member::End::kDone) throw SystemCallError("crew: a member failed");
        return end.has_value();
      }));
    };
    until([&] { return done() == 0 && board_.joined.load() == members.size(); }, "start");
    enter(Phase::kPingBefore);
    until([&] { return done() == 0 && phase() == Phase::kWork; }, "answer");
    const double value = watch();
    enter(Phase::kPingAfter);
    until([&] { return done() == members.size(); }, "end");
    return {value, board_.ping_before_ns, board_.ping_after_ns};
  }

  /// Whether the members' work is done.
  bool over() const noexcept {
    return board_.phase.load(std::memory_order_relaxed) != static_cast<std::uint32_t>(Phase::kWork);
  }

 private:
  enum class Phase : std::uint32_t { kStart, kPingBefore, kWork, kPingAfter, kOver };

  struct Board {
    std::atomic<std::uint32_t> phase;
    std::atomic<std::uint32_t> joined;
    alignas(kCacheLine) std::atomic<std::uint32_t> there;
    alignas(kCacheLine) std::atomic<std::uint32_t> back;
    alignas(kCacheLine) double ping_before_ns;
    double ping_after_ns;
  };

  static constexpr double kPatienceS = 30.0;
  static constexpr std::size_t kPingBlocks = 16;
  static constexpr std::int64_t kNapNs = 10'000'000;

  Phase phase() const noexcept {
    return static_cast<Phase>(board_.phase.load(std::memory_order_acquire));  // sync: crew.phase
  }
  void enter(Phase next) noexcept {
    board_.phase.store(static_cast<std::uint32_t>(next),
                       std::memory_order_release);  // sync: crew.phase
    os::futex_wake_all(board_.phase);
  }
  void await(Phase wanted) noexcept {
    for (Phase now = phase(); now < wanted; now = phase()) {
      os::futex_wait(board_.phase, static_cast<std::uint32_t>(now), kNapNs);
    }
  }
  template <class Condition>
  static void until(Condition&& condition, const char* what) {
    const Deadline deadline = Deadline::in(kPatienceS);
    while (!condition()) {
      if (deadline.passed()) {
        throw PoolTimeout(std::string("crew: its members did not ") + what + " within " +
                          std::to_string(kPatienceS) + " s");
      }
      ::usleep(100);
    }
  }

  void join(std::uint32_t turn) noexcept {
    cpu_set_t allowed;
    if (::sched_getaffinity(0, sizeof(allowed), &allowed) == 0) {
      int skip = static_cast<int>(turn % static_cast<std::uint32_t>(CPU_COUNT(&allowed)));
      int cpu = 0;
      while (!CPU_ISSET(cpu, &allowed) || skip-- > 0) ++cpu;
      cpu_set_t one;
      CPU_ZERO(&one);
      CPU_SET(cpu, &one);
      ::sched_setaffinity(0, sizeof(one), &one);
    }
    board_.joined.fetch_add(1);
  }

  void bounce(bool first, Phase in, Phase next, double& result) noexcept {
    first ? ping(in, next, result) : pong(in);
  }

  void ping(Phase in, Phase next, double& result) noexcept {
    await(in);
    std::uint32_t round = board_.back.load(std::memory_order_relaxed);
    const auto round_trip = [&] {
      board_.there.store(++round, std::memory_order_release);                     // sync: crew.ping
      while (board_.back.load(std::memory_order_acquire) != round) pause_core();  // sync: crew.ping
      return true;
    };
    result = median_round_ns(round_trip, [](std::size_t done) { return done == kPingBlocks; });
    enter(next);
  }

  void pong(Phase in) noexcept {
    await(in);
    std::uint32_t round = board_.back.load(std::memory_order_relaxed);
    while (phase() == in) {
      if (board_.there.load(std::memory_order_acquire) == round) {  // sync: crew.ping
        pause_core();
        continue;
      }
      board_.back.store(++round, std::memory_order_release);  // sync: crew.ping
    }
  }

  std::uint32_t producers_;
  std::uint32_t consumers_;
  os::SharedZeros zeros_;
  Board& board_;
};

}  // namespace flowtrain::measure
