#pragma once

#include <new>

#include "measure/worker_group.hpp"

namespace flowtrain::measure {

/// Polls until `ready` or the end of the group's work; yields the core after every kPolls polls.
///
/// @return  Whether it was ready.
template <class Ready>
bool poll_until(const WorkerGroup& group, std::uint32_t pauses, Ready&& ready) {
  constexpr int kPolls = 64;
  for (int polls = 1; !ready(); ++polls) {
    if (group.over()) return false;
    if (polls % kPolls == 0) {
      ::sched_yield();
    } else {
      for (std::uint32_t i = 0; i < pauses; ++i) pause_core();
    }
  }
  return true;
}

/// A queue in shared memory, followed by the bytes it asks for.
template <class Queue>
class Placed {
 public:
  explicit Placed(const Load& load)
      : memory_(kOffset + Queue::bytes(load), "queue"),
        queue_(new (memory_.data()) Queue(memory_.data() + kOffset, load)) {}
  ~Placed() { queue_->~Queue(); }
  Placed(const Placed&) = delete;
  Placed& operator=(const Placed&) = delete;
  Queue& operator*() const { return *queue_; }

 private:
  static constexpr std::size_t kOffset = round_up(sizeof(Queue), kPageBytes);
  os::SharedZeros memory_;
  Queue* queue_;
};

/// Moves descriptors of 64 bytes through a queue between processes.
///
/// A Queue lies in memory that the processes share, with the number of zeroed bytes it asks for:
///   static std::size_t bytes(const Load&);
///   Queue(std::byte* zeros, const Load&);
///   Queue::Sender(Queue&, std::uint32_t producer);    bool send(): a whole batch, or nothing;
///   Queue::Receiver(Queue&, std::uint32_t consumer);  std::uint32_t receive(): number received.
///
/// @return  Descriptors received per second.
template <class Queue>
Figure flow(const Load& load) {
  struct alignas(kCacheLine) Count {
    std::atomic<std::uint64_t> value;
  };
  constexpr std::int64_t kWarmUpNs = 5'000'000;
  const Placed<Queue> queue(load);
  const os::SharedZeros counters(load.consumers * sizeof(Count), "counters");
  auto* const counts = reinterpret_cast<Count*>(counters.data());
  WorkerGroup group(load.producers, load.consumers);
  const auto received = [&] {
    std::uint64_t sum = 0;
    for (std::uint32_t i = 0; i < load.consumers; ++i) {
      sum += counts[i].value.load(std::memory_order_relaxed);
    }
    return sum;
  };
  return group.run(
      [&](std::uint32_t i) {
        typename Queue::Sender sender(*queue, i);
        while (poll_until(group, load.pauses, [&] { return sender.send(); })) {
        }
      },
      [&](std::uint32_t i) {
        typename Queue::Receiver receiver(*queue, i);
        std::uint64_t sum = 0;
        std::uint32_t count = 0;
        while (poll_until(group, load.pauses, [&] { return (count = receiver.receive()) > 0; })) {
          counts[i].value.store(sum += count, std::memory_order_relaxed);
        }
      },
      [&] {
        ::usleep(kWarmUpNs / 1000);
        const std::uint64_t before = received();
        const Stopwatch watch;
        ::usleep(static_cast<useconds_t>(load.seconds * 1e6));
        const auto moved = static_cast<double>(received() - before);
        return moved / watch.elapsed_s();
      });
}

/// Sends one descriptor through one queue and back through another.
///
/// @return  Median time of a round trip in nanoseconds.
template <class Queue>
Figure bounce(double seconds) {
  const Load one{1, 1, 1, seconds};
  const Placed<Queue> there(one);
  const Placed<Queue> back(one);
  const os::SharedZeros result(sizeof(double), "result");
  auto& median_ns = *reinterpret_cast<double*>(result.data());
  WorkerGroup group(1, 1);
  Figure figure = group.run(
      [&](std::uint32_t) {
        typename Queue::Sender sender(*there, 0);
        typename Queue::Receiver receiver(*back, 0);
        median_ns = median_round_ns(
            [&] {
              return poll_until(group, one.pauses, [&] { return sender.send(); }) &&
                     poll_until(group, one.pauses, [&] { return receiver.receive() > 0; });
            },
            [&](std::size_t) { return group.over(); });
      },
      [&](std::uint32_t) {
        typename Queue::Sender sender(*back, 0);
        typename Queue::Receiver receiver(*there, 0);
        while (poll_until(group, one.pauses, [&] { return receiver.receive() > 0; }) &&
               poll_until(group, one.pauses, [&] { return sender.send(); })) {
        }
      },
      [&] {
        ::usleep(static_cast<useconds_t>(seconds * 1e6));
        return 0.0;
      });
  figure.value = median_ns;
  return figure;
}

}  // namespace flowtrain::measure
