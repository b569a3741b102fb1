#pragma once

#include <cstdlib>
#include <new>

#include "channel/descriptor.hpp"
#include "channel/measure/relay.hpp"
#include "lockfree/index_ring.hpp"

namespace flowtrain::channel::measure {

/// The shipped ring as a queue: a sender allocates cells by one compare-and-swap each, writes their
/// descriptors and publishes them; a receiver takes them, reads the descriptors and frees them.
///
/// Each sender has cells of its own, so that no search for a free one is measured; like the pool it
/// uses the lowest again as soon as they are free, which keeps what is under way in the caches.
class CellQueue {
 public:
  using Ring = lockfree::IndexRing<>;

  static std::size_t bytes(const Load& load) {
    return sizeof(lockfree::RingHints) + kInFlight * kBytesOfCell +
           (load.producers + load.consumers) * sizeof(lockfree::LaneIntent);
  }

  CellQueue(std::byte* zeros, const Load& load) : load_(load), own_(kInFlight / load.producers) {
    const auto place = [&zeros]<class T>(T*& at, std::size_t count) {
      at = reinterpret_cast<T*>(zeros);
      zeros += count * sizeof(T);
    };
    place(cells_, kInFlight);
    place(lanes_, load.producers + load.consumers);
    place(hints_, 1);
    place(words_, kInFlight);
    place(slots_, kInFlight);
  }

  class Sender {
   public:
    Sender(CellQueue& queue, std::uint32_t i)
        : queue_(queue),
          ring_(queue.ring()),
          lane_(static_cast<std::uint16_t>(i)),
          first_(i * queue.own_),
          end_(first_ + queue.own_),
          next_(first_),
          batch_(queue.load_.batch) {}

    bool send() noexcept {
      if (next_ != first_ && is_free({first_, batch_})) next_ = first_;
      const lockfree::Run run{next_, batch_};
      if (!is_free(run)) return false;
      queue_.prefetch(run, prefetch_to_write);
      // As an allocation does it, though nobody else wants these.
      for (std::uint32_t c = run.first; c < run.first + run.count; ++c) {
        auto word = queue_.words_[c].load(std::memory_order_relaxed);
        queue_.words_[c].compare_exchange_strong(
            word, lockfree::moved(word, lockfree::CellState::kOwned, lane_),
            std::memory_order_acq_rel);  // sync: cell.word
        queue_.cells_[c] = {c, 64, sent_, 0, sent_, {1, 2, 3, 4}, lane_, 0, 4, 0};
        ++sent_;
      }
      next_ = run.first + run.count < end_ ? run.first + run.count : first_;
      return ring_.push_run(run, lane_, queue_.lanes_[lane_]);
    }

   private:
    /// Looks at the last first: looks at what is about to be freed hold its reader up.
    bool is_free(const lockfree::Run& run) const noexcept {
      std::uint32_t left = run.count;
      while (left > 0 && lockfree::state_of(queue_.words_[run.first + left - 1].load(
                             std::memory_order_acquire)) ==  // sync: cell.word
                             lockfree::CellState::kFree) {
        --left;
      }
      return left == 0;
    }

    CellQueue& queue_;
    Ring ring_;
    std::uint16_t lane_;
    std::uint32_t first_;
    std::uint32_t end_;
    std::uint32_t next_;
    std::uint32_t batch_;
    std::uint64_t sent_ = 0;
  };

  class Receiver {
   public:
    Receiver(CellQueue& queue, std::uint32_t i)
        : queue_(queue),
          ring_(queue.ring()),
          lane_(static_cast<std::uint16_t>(queue.load_.producers + i)) {}

    std::uint32_t receive() noexcept {
      const lockfree::Run run = ring_.pop_run(queue_.load_.batch, lane_, queue_.lanes_[lane_]);
      if (run == Ring::kDamaged) std::abort();
      queue_.prefetch(run, prefetch_to_read);
      for (std::uint32_t c = run.first; c < run.first + run.count; ++c) {
        const Descriptor seen = queue_.cells_[c];
        asm volatile("" : : "m"(seen));  // It is read, though nobody needs it.
        const auto word = queue_.words_[c].load(std::memory_order_relaxed);
        queue_.words_[c].store(lockfree::freed(word),
                               std::memory_order_release);  // sync: cell.word
      }
      return run.count;
    }

   private:
    CellQueue& queue_;
    Ring ring_;
    std::uint16_t lane_;
  };

 private:
  static constexpr std::size_t kBytesOfCell =
      sizeof(Descriptor) + sizeof(lockfree::AtomicCell) + sizeof(lockfree::AtomicSlot);

  /// As a producer and a consumer do it.
  template <class Fetch>
  void prefetch(const lockfree::Run& run, Fetch&& fetch) const noexcept {
    for (std::uint32_t c = run.first; c < run.first + run.count; ++c) fetch(&cells_[c]);
  }
  Ring ring() const { return {hints_, slots_, kInFlight, words_}; }

  Load load_;
  std::uint32_t own_;
  Descriptor* cells_;
  lockfree::LaneIntent* lanes_;
  lockfree::RingHints* hints_;
  lockfree::AtomicCell* words_;
  lockfree::AtomicSlot* slots_;
};

}  // namespace flowtrain::channel::measure
