#pragma once

#include <cstdlib>
#include <new>

#include "channel/layout/descriptor.hpp"
#include "lockfree/index_ring.hpp"
#include "measure/queue_bench.hpp"

namespace flowtrain::measure {

using channel::Descriptor;

/// The shipped ring as a queue: a sender owns free cells, writes their descriptors and publishes
/// them; a receiver takes them, reads the descriptors and frees them.
///
/// Each sender has its own cells, so the search for a free cell is not measured. It uses them in
/// turn, and leases a cell by a store, since no other sender may. With `Load::shared` it works as
/// in a pool, whose producers share all cells: it uses the lowest free cells, which are warm in
/// caches, and leases each by a compare-and-swap.
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
          next_{first_, queue.load_.batch} {}

    bool send() noexcept {
      const lockfree::Run lowest{first_, next_.count};
      const lockfree::Run run = queue_.load_.shared && is_free(lowest) ? lowest : next_;
      if (!is_free(run)) return false;
      queue_.prefetch(run, prefetch_to_write);
      for (std::uint32_t c = run.first; c < run.first + run.count; ++c) {
        own(queue_.words_[c]);
        queue_.cells_[c] = {c, 64, sent_, 0, sent_, {1, 2, 3, 4}, lane_, 0, 4, 0};
        ++sent_;
      }
      next_ = after(run);
      // Fetches the words of a later run while push_run waits for a slot.
      queue_.prefetch_words(after(next_));
      return ring_.push_run(run, lane_, queue_.lanes_[lane_]);
    }

   private:
    lockfree::Run after(const lockfree::Run& run) const noexcept {
      const std::uint32_t end = run.first + run.count;
      return {end < end_ ? end : first_, run.count};
    }

    void own(lockfree::AtomicCell& cell) const noexcept {
      auto word = cell.load(std::memory_order_relaxed);
      const auto owned = lockfree::moved(word, lockfree::CellState::kLeased, lane_);
      if (queue_.load_.shared) {
        cell.compare_exchange_strong(word, owned, std::memory_order_acq_rel);  // sync: cell.word
      } else {
        cell.store(owned, std::memory_order_release);  // sync: cell.word
      }
    }

    /// Reads the last cell first: reading a word that is about to be freed delays its reader.
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
    lockfree::Run next_;
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
        asm volatile("" : : "m"(seen));  // Keeps the read.
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

  /// As Producer and Consumer do.
  template <class Fetch>
  void prefetch(const lockfree::Run& run, Fetch&& fetch) const noexcept {
    for (std::uint32_t c = run.first; c < run.first + run.count; ++c) fetch(&cells_[c]);
  }
  void prefetch_words(const lockfree::Run& run) const noexcept {
    constexpr std::uint32_t kWordsOfLine = kCacheLine / sizeof(lockfree::AtomicCell);
    for (std::uint32_t c = run.first; c < run.first + run.count; c += kWordsOfLine) {
      prefetch_to_write(&words_[c]);
    }
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

}  // namespace flowtrain::measure
