#pragma once

#include <new>

#include "measure/crew.hpp"

namespace flowtrain::measure {

/// Waits of a member: it looks, and after some looks gives its core to somebody else.
template <class Ready>
bool look_until(const Crew& crew, std::uint32_t pauses, Ready&& ready) {
  constexpr int kPatience = 64;
  for (int looks = 1; !ready(); ++looks) {
    if (crew.over()) return false;
    if (looks % kPatience == 0) {
      ::sched_yield();
    } else {
      for (std::uint32_t i = 0; i < pauses; ++i) pause_core();
    }
  }
  return true;
}

/// A queue in shared memory, with the bytes that it wants behind it.
template <class Queue>
class Placed {
 public:
  explicit Placed(const Load& load)
      : memory_(kBehind + Queue::bytes(load), "queue"),
        queue_(new (memory_.data()) Queue(memory_.data() + kBehind, load)) {}
  ~Placed() { queue_->~Queue(); }
  Placed(const Placed&) = delete;
  Placed& operator=(const Placed&) = delete;
  Queue& operator*() const { return *queue_; }

 private:
  static constexpr std::size_t kBehind = round_up(sizeof(Queue), kPageBytes);
  os::SharedZeros memory_;
  Queue* queue_;
};

/// Moves descriptors of 64 bytes through a queue between processes.
///
/// A Queue lies in memory that the processes share, with as many zeroed bytes as it wants:
///   static std::size_t bytes(const Load&);
///   Queue(std::byte* zeros, const Load&);
///   Queue::Sender(Queue&, std::uint32_t producer);    bool send(): a batch, or nothing;
///   Queue::Receiver(Queue&, std::uint32_t consumer);  std::uint32_t receive(): how many.
///
/// @return  Descriptors received in a second.
template <class Queue>
Slice flow(const Load& load) {
  struct alignas(kCacheLine) Count {
    std::atomic<std::uint64_t> value;
  };
  constexpr std::int64_t kWarmUpNs = 5'000'000;
  const Placed<Queue> queue(load);
  const os::SharedZeros counters(load.consumers * sizeof(Count), "counters");
  auto* const counts = reinterpret_cast<Count*>(counters.data());
  Crew crew(load.producers, load.consumers);
  const auto received = [&] {
    std::uint64_t sum = 0;
    for (std::uint32_t i = 0; i < load.consumers; ++i) {
      sum += counts[i].value.load(std::memory_order_relaxed);
    }
    return sum;
  };
  return crew.run(
      [&](std::uint32_t i) {
        typename Queue::Sender sender(*queue, i);
        while (look_until(crew, load.pauses, [&] { return sender.send(); })) {
        }
      },
      [&](std::uint32_t i) {
        typename Queue::Receiver receiver(*queue, i);
        std::uint64_t sum = 0;
        std::uint32_t some = 0;
        while (look_until(crew, load.pauses, [&] { return (some = receiver.receive()) > 0; })) {
          counts[i].value.store(sum += some, std::memory_order_relaxed);
        }
      },
      [&] {
        ::usleep(kWarmUpNs / 1000);
        const std::uint64_t before = received();
        const std::int64_t start = now_ns();
        ::usleep(static_cast<useconds_t>(load.seconds * 1e6));
        const auto moved = static_cast<double>(received() - before);
        return moved / (static_cast<double>(now_ns() - start) * 1e-9);
      });
}

/// Sends one descriptor there through one queue and back through another.
///
/// @return  Median time of a round trip in nanoseconds.
template <class Queue>
Slice bounce(double seconds) {
  const Load one{1, 1, 1, seconds};
  const Placed<Queue> there(one);
  const Placed<Queue> back(one);
  const os::SharedZeros result(sizeof(double), "result");
  auto& median_ns = *reinterpret_cast<double*>(result.data());
  Crew crew(1, 1);
  Slice slice = crew.run(
      [&](std::uint32_t) {
        typename Queue::Sender sender(*there, 0);
        typename Queue::Receiver receiver(*back, 0);
        median_ns = median_round_ns(
            [&] {
              return look_until(crew, one.pauses, [&] { return sender.send(); }) &&
                     look_until(crew, one.pauses, [&] { return receiver.receive() > 0; });
            },
            [&](std::size_t) { return crew.over(); });
      },
      [&](std::uint32_t) {
        typename Queue::Sender sender(*back, 0);
        typename Queue::Receiver receiver(*there, 0);
        while (look_until(crew, one.pauses, [&] { return receiver.receive() > 0; }) &&
               look_until(crew, one.pauses, [&] { return sender.send(); })) {
        }
      },
      [&] {
        ::usleep(static_cast<useconds_t>(seconds * 1e6));
        return 0.0;
      });
  slice.value = median_ns;
  return slice;
}

}  // namespace flowtrain::measure
