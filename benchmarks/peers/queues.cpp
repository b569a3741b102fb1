// Other bounded queues, and a textbook one, under the harness of the ring benchmark. Reads
// requests, one per line: `has | flow | round_trip`, queue, producers, consumers, batch, seconds,
// pauses. Answers each by a line: `yes` or `no`, or a figure and its two ping-pongs.
#include <iostream>
#include <optional>
#include <string>

#include "channel/layout/descriptor.hpp"
#include "measure/queue_bench.hpp"
#if __has_include(<boost/lockfree/queue.hpp>)
#define WITH_BOOST 1
#include <boost/interprocess/ipc/message_queue.hpp>
#include <boost/lockfree/queue.hpp>
#endif

namespace {

using flowtrain::kCacheLine;
using flowtrain::channel::Descriptor;
using flowtrain::measure::bounce;
using flowtrain::measure::Figure;
using flowtrain::measure::flow;
using flowtrain::measure::kInFlight;
using flowtrain::measure::Load;

Descriptor describe(std::uint32_t producer, std::uint64_t sequence) {
  return {producer, 64, sequence, 0, sequence, {1, 2, 3, 4}, static_cast<std::uint16_t>(producer),
          0,        4,  0};
}

void use(const Descriptor& seen) { asm volatile("" : : "m"(seen)); }

/// D. Vyukov's bounded queue: slots of 72 bytes with a sequence number beside each descriptor. A
/// batch claims its slots by one compare-and-swap. A process that stops between claim and
/// publication blocks all others.
class Vyukov {
 public:
  static std::size_t bytes(const Load&) { return kInFlight * sizeof(Slot); }

  Vyukov(std::byte* zeros, const Load& load)
      : slots_(reinterpret_cast<Slot*>(zeros)), batch_(load.batch) {
    for (std::uint64_t i = 0; i < kInFlight; ++i) slots_[i].sequence = i;
  }

  class Sender {
   public:
    Sender(Vyukov& queue, std::uint32_t i) : queue_(queue), me_(i) {}

    bool send() noexcept {
      const std::uint64_t count = queue_.batch_;
      std::uint64_t at = queue_.tail_.load(std::memory_order_relaxed);
      for (;;) {
        // Backwards: the last slot is usually freed last.
        std::uint64_t i = count;
        while (i > 0 && queue_.sequence(at + i - 1) == at + i - 1) --i;
        if (i > 0) {
          const std::uint64_t now = queue_.tail_.load(std::memory_order_relaxed);
          if (now == at) return false;
          at = now;
        } else if (queue_.tail_.compare_exchange_weak(at, at + count, std::memory_order_relaxed)) {
          break;
        }
      }
      for (std::uint64_t i = at; i < at + count; ++i) {
        Slot& slot = queue_.slot(i);
        slot.item = describe(me_, sent_++);
        slot.sequence.store(i + 1, std::memory_order_release);
      }
      return true;
    }

   private:
    Vyukov& queue_;
    std::uint32_t me_;
    std::uint64_t sent_ = 0;
  };

  class Receiver {
   public:
    Receiver(Vyukov& queue, std::uint32_t) : queue_(queue) {}

    std::uint32_t receive() noexcept {
      std::uint64_t at = queue_.head_.load(std::memory_order_relaxed);
      std::uint64_t count = 0;
      for (;;) {
        count = 0;
        while (count < queue_.batch_ && queue_.sequence(at + count) == at + count + 1) ++count;
        if (count == 0) {
          const std::uint64_t now = queue_.head_.load(std::memory_order_relaxed);
          if (now == at) return 0;
          at = now;
        } else if (queue_.head_.compare_exchange_weak(at, at + count, std::memory_order_relaxed)) {
          break;
        }
      }
      for (std::uint64_t i = at; i < at + count; ++i) {
        Slot& slot = queue_.slot(i);
        const Descriptor seen = slot.item;
        use(seen);
        slot.sequence.store(i + kInFlight, std::memory_order_release);
      }
      return static_cast<std::uint32_t>(count);
    }

   private:
    Vyukov& queue_;
  };

 private:
  struct Slot {
    std::atomic<std::uint64_t> sequence;
    Descriptor item;
  };
  static_assert(sizeof(Slot) == 72);

  Slot& slot(std::uint64_t at) const { return slots_[at % kInFlight]; }
  std::uint64_t sequence(std::uint64_t at) const {
    return slot(at).sequence.load(std::memory_order_acquire);
  }

  Slot* slots_;
  std::uint32_t batch_;
  alignas(kCacheLine) std::atomic<std::uint64_t> tail_{0};
  alignas(kCacheLine) std::atomic<std::uint64_t> head_{0};
};

#ifdef WITH_BOOST

/// Fixed capacity: nodes lie inside the queue and are referenced by index, so it works between
/// processes.
class BoostQueue {
 public:
  static std::size_t bytes(const Load&) { return 0; }
  BoostQueue(std::byte*, const Load&) {}

  class Sender {
   public:
    Sender(BoostQueue& queue, std::uint32_t i) : queue_(queue), me_(i) {}
    bool send() noexcept {
      if (!queue_.queue_.bounded_push(describe(me_, sent_))) return false;
      ++sent_;
      return true;
    }

   private:
    BoostQueue& queue_;
    std::uint32_t me_;
    std::uint64_t sent_ = 0;
  };

  class Receiver {
   public:
    Receiver(BoostQueue& queue, std::uint32_t) : queue_(queue) {}
    std::uint32_t receive() noexcept {
      Descriptor seen;
      if (!queue_.queue_.pop(seen)) return 0;
      use(seen);
      return 1;
    }

   private:
    BoostQueue& queue_;
  };

 private:
  boost::lockfree::queue<Descriptor, boost::lockfree::capacity<kInFlight>> queue_;
};

/// A queue under a mutex in shared memory.
class MessageQueue {
 public:
  static std::size_t bytes(const Load&) { return 0; }
  MessageQueue(std::byte*, const Load&)
      : name_("flowtrain-bench-" + std::to_string(::getpid()) + "-" + std::to_string(made_++)),
        queue_(boost::interprocess::create_only, name_.c_str(), kInFlight, sizeof(Descriptor)) {}
  ~MessageQueue() { boost::interprocess::message_queue::remove(name_.c_str()); }

  class Sender {
   public:
    Sender(MessageQueue& queue, std::uint32_t i) : queue_(queue), me_(i) {}
    bool send() {
      const Descriptor item = describe(me_, sent_);
      if (!queue_.queue_.try_send(&item, sizeof(item), 0)) return false;
      ++sent_;
      return true;
    }

   private:
    MessageQueue& queue_;
    std::uint32_t me_;
    std::uint64_t sent_ = 0;
  };

  class Receiver {
   public:
    Receiver(MessageQueue& queue, std::uint32_t) : queue_(queue) {}
    std::uint32_t receive() {
      Descriptor seen;
      std::size_t size = 0;
      unsigned priority = 0;
      if (!queue_.queue_.try_receive(&seen, sizeof(seen), size, priority)) return 0;
      use(seen);
      return 1;
    }

   private:
    MessageQueue& queue_;
  };

 private:
  static inline int made_ = 0;
  std::string name_;
  boost::interprocess::message_queue queue_;
};

#endif

struct Request {
  std::string action;
  Load load;
};

/// Measures one figure of a queue.
template <class Queue>
std::optional<Figure> ask(const Request& request) {
  if (request.action == "has") return Figure{};
  if (request.action == "round_trip") return bounce<Queue>(request.load.seconds);
  return flow<Queue>(request.load);
}

/// Not inlined into main, which GCC optimizes as cold: it would copy descriptors by `rep movs`.
[[gnu::noinline]] std::optional<Figure> ask(const std::string& queue, const Request& request) {
#ifdef WITH_BOOST
  if (queue == "boost_queue") return ask<BoostQueue>(request);
  if (queue == "message_queue") return ask<MessageQueue>(request);
#endif
  if (queue == "vyukov") return ask<Vyukov>(request);
  return std::nullopt;
}

}  // namespace

int main() {
  std::string queue;
  Request request;
  Load& load = request.load;
  while (std::cin >> request.action >> queue >> load.producers >> load.consumers >> load.batch >>
         load.seconds >> load.pauses) {
    const std::optional<Figure> found = ask(queue, request);
    if (!found || request.action == "has") {
      std::cout << (found ? "yes" : "no") << std::endl;
    } else {
      std::cout << found->value << ' ' << found->ping_before_ns << ' ' << found->ping_after_ns
                << std::endl;
    }
  }
}
