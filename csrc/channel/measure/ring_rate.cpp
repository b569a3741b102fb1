#include "channel/measure/ring_rate.hpp"

#include <pthread.h>
#include <sched.h>

#include <bit>
#include <chrono>
#include <string>
#include <thread>
#include <vector>

#include "base/clock.hpp"
#include "base/error.hpp"
#include "channel/descriptor.hpp"
#include "lockfree/index_ring.hpp"

namespace flowtrain::channel::measure {
namespace {

using lockfree::CellState;
using lockfree::Run;

constexpr std::uint32_t kCellsOfOne = 256;
constexpr int kPatience = 64;  // Fruitless looks before the core is given to somebody else.

/// A ring in plain memory, with the cells and lanes of all its users.
class Bench {
 public:
  explicit Bench(const RingLoad& load)
      : load_(load),
        slots_(std::bit_ceil(load.producers * kCellsOfOne)),
        words_(load.producers * kCellsOfOne),
        cells_(words_.size()),
        lanes_(load.producers + load.consumers),
        taken_(load.consumers) {}

  double run() {
    std::vector<std::jthread> threads;
    for (std::uint32_t i = 0; i < load_.producers; ++i) {
      threads.emplace_back([this, i] { produce(i); });
    }
    for (std::uint32_t i = 0; i < load_.consumers; ++i) {
      threads.emplace_back([this, i] { consume(i); });
    }
    std::uint32_t turn = 0;
    for (std::jthread& thread : threads) pin(thread, turn++);
    std::this_thread::sleep_for(std::chrono::milliseconds(10));  // Until they all run.
    const std::uint64_t before = taken();
    const std::int64_t start = now_ns();
    std::this_thread::sleep_for(std::chrono::duration<double>(load_.seconds));
    const std::uint64_t moved = taken() - before;
    const double seconds = static_cast<double>(now_ns() - start) * 1e-9;
    stop_.store(true, std::memory_order_relaxed);
    return static_cast<double>(moved) / seconds;
  }

 private:
  struct alignas(kCacheLine) Count {
    std::atomic<std::uint64_t> value{0};
  };

  lockfree::IndexRing<> ring() {
    return {&hints_, slots_.data(), static_cast<std::uint32_t>(slots_.size()), words_.data()};
  }

  std::uint64_t taken() const {
    std::uint64_t sum = 0;
    for (const Count& count : taken_) sum += count.value.load(std::memory_order_relaxed);
    return sum;
  }

  /// Neighbours in a pair of producer and consumer get different cores, where there are some.
  void pin(std::jthread& thread, std::uint32_t turn) const {
    cpu_set_t allowed;
    if (::sched_getaffinity(0, sizeof(allowed), &allowed) != 0) return;
    std::vector<int> cpus;
    for (int cpu = 0; cpu < CPU_SETSIZE; ++cpu) {
      if (CPU_ISSET(cpu, &allowed)) cpus.push_back(cpu);
    }
    const bool consumes = turn >= load_.producers;
    const std::uint32_t pair = consumes ? turn - load_.producers : turn;
    cpu_set_t one;
    CPU_ZERO(&one);
    CPU_SET(cpus[(pair + (consumes ? 1 : 0)) % cpus.size()], &one);
    ::pthread_setaffinity_np(thread.native_handle(), sizeof(one), &one);
  }

  /// Looks until `ready`, or the end.
  template <class Ready>
  bool await(Ready&& ready) const {
    for (int looks = 0; !ready(); ++looks) {
      if (stop_.load(std::memory_order_relaxed)) return false;
      if (looks % kPatience == kPatience - 1) ::sched_yield();
    }
    return true;
  }

  bool is_free(std::uint32_t c) const {
    return lockfree::state_of(words_[c].load(std::memory_order_acquire)) ==  // sync: cell.word
           CellState::kFree;
  }

  void produce(std::uint32_t me) {
    auto ring = this->ring();
    const auto lane = static_cast<std::uint16_t>(me);
    const std::uint32_t first = me * kCellsOfOne;
    std::uint64_t sent = 0;
    for (;; sent += load_.batch) {
      const Run run{first + static_cast<std::uint32_t>(sent % kCellsOfOne), load_.batch};
      for (std::uint32_t c = run.first; c < run.first + run.count; ++c) {
        if (!await([&] { return is_free(c); })) return;
        const auto word = words_[c].load(std::memory_order_relaxed);
        words_[c].store(lockfree::moved(word, CellState::kOwned, lane), std::memory_order_relaxed);
        cells_[c] = {c, 64, sent, me, sent, {1, 2, 3, 4}, lane, 0, 4, 0};
      }
      if (load_.runs) {
        ring.push_run(run, lane, lanes_[lane]);
      } else {
        for (std::uint32_t i = 0; i < run.count; ++i) ring.push(run.first + i, lane, lanes_[lane]);
      }
    }
  }

  void consume(std::uint32_t me) {
    auto ring = this->ring();
    const auto lane = static_cast<std::uint16_t>(load_.producers + me);
    std::atomic<std::uint64_t>& taken = taken_[me].value;
    Run run;
    while (await([&] {
      run = ring.pop_run(load_.runs ? load_.batch : 1, lane, lanes_[lane]);
      return run.count > 0;
    })) {
      for (std::uint32_t c = run.first; c < run.first + run.count; ++c) {
        const Descriptor seen = cells_[c];
        asm volatile("" : : "m"(seen));  // It is read, though nobody needs it.
        const auto word = words_[c].load(std::memory_order_relaxed);
        words_[c].store(lockfree::freed(word), std::memory_order_release);  // sync: cell.word
      }
      taken.store(taken.load(std::memory_order_relaxed) + run.count, std::memory_order_relaxed);
    }
  }

  RingLoad load_;
  lockfree::RingHints hints_;
  std::vector<lockfree::AtomicSlot> slots_;
  std::vector<lockfree::AtomicCell> words_;
  std::vector<Descriptor> cells_;
  std::vector<lockfree::LaneIntent> lanes_;
  std::vector<Count> taken_;
  std::atomic<bool> stop_{false};
};

}  // namespace

double ring_rate(const RingLoad& load) {
  if (load.producers == 0 || load.consumers == 0 || load.batch > kCellsOfOne / 2 ||
      !std::has_single_bit(load.batch)) {
    throw BadArgument("ring_rate: producers=" + std::to_string(load.producers) +
                      " and consumers=" + std::to_string(load.consumers) +
                      " must be at least 1, batch=" + std::to_string(load.batch) +
                      " a power of two, at most " + std::to_string(kCellsOfOne / 2));
  }
  return Bench(load).run();
}

}  // namespace flowtrain::channel::measure
