#pragma once

#include <sys/mman.h>

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <cstdint>

#include "base/clock.hpp"
#include "base/error.hpp"
#include "base/math.hpp"

namespace flowtrain::channel::torture {

/// What one participant says of itself; its successors use it after it.
struct alignas(kCacheLine) Seat {
  std::atomic<std::uint32_t> window;     ///< Not 0 inside a push, a pop or a judgement.
  std::atomic<std::uint64_t> releasing;  ///< Item + 1 that it is releasing.
};

/// What became of every item, outside the pool and written by nobody but who did it.
///
/// Memory:   zeros, shared with forked children; an item has one byte in each table.
/// Threads:  any, in any processes.
/// Progress: wait-free.
/// Ordering: none; it is read when nobody is left.
/// Errors:   SystemCallError where it cannot be mapped.
class Ledger {
 public:
  static constexpr std::uint64_t kMostItems = std::uint64_t{1} << 28;
  static constexpr std::uint32_t kMostSeats = 256;

  struct Counters {
    std::atomic<std::uint64_t> next;
    alignas(kCacheLine) std::atomic<std::uint64_t> committed;
    std::atomic<std::int64_t> last_commit_ns;
    std::atomic<std::int64_t> longest_gap_ns;
    std::atomic<std::uint64_t> corrupt;
    Seat seats[kMostSeats];
  };
  using Marks = std::atomic<std::uint8_t>*;

  Ledger() : bytes_(round_up(sizeof(Counters), kPageBytes) + 2 * kMostItems) {
    void* const at = ::mmap(nullptr, bytes_, PROT_READ | PROT_WRITE,
                            MAP_SHARED | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (at == MAP_FAILED) throw_errno("torture: mmap of the ledger");
    base_ = static_cast<std::byte*>(at);
  }
  ~Ledger() { ::munmap(base_, bytes_); }
  Ledger(const Ledger&) = delete;
  Ledger& operator=(const Ledger&) = delete;

  Counters& counters() const { return *reinterpret_cast<Counters*>(base_); }
  Marks published() const {
    return reinterpret_cast<Marks>(base_ + round_up(sizeof(Counters), kPageBytes));
  }
  Marks committed() const { return published() + kMostItems; }

  void note_commit(std::uint64_t item) const {
    Counters& all = counters();
    committed()[item].fetch_add(1, std::memory_order_relaxed);
    all.committed.fetch_add(1, std::memory_order_relaxed);
    const std::int64_t now = now_ns();
    const std::int64_t gap = now - all.last_commit_ns.exchange(now, std::memory_order_relaxed);
    std::int64_t longest = all.longest_gap_ns.load(std::memory_order_relaxed);
    while (gap > longest &&
           !all.longest_gap_ns.compare_exchange_weak(longest, gap, std::memory_order_relaxed)) {
    }
  }

 private:
  std::size_t bytes_;
  std::byte* base_;
};

}  // namespace flowtrain::channel::torture
