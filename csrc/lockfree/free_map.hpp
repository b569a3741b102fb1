#pragma once

#include <atomic>
#include <bit>
#include <cstdint>

#include "base/math.hpp"
#include "lockfree/cell_word.hpp"

namespace flowtrain::lockfree {

/// Where free cells may be, so that a search need not look at every word: one bit for each group
/// of eight cells, whose words share a cache line, says that none of them was free.
///
/// Memory:   placed by the caller; zero bytes say that any cell may be free.
/// Threads:  any number, in any processes.
/// Progress: a search looks at each group once, or twice; noting is wait-free.
/// Ordering: a cell's word is the truth, and a bit only a hint. Who frees stores the word and then
///           looks at the bit, who sets the bit then looks at the words again: one of them sees
///           the other. A death in between leaves free cells behind a bit, for `scan` to find.
/// Errors:   never throws.
class FreeMap {
 public:
  /// On a line of its own, since who works in one place need not wait for who works in another.
  struct alignas(kCacheLine) Bits {
    std::atomic<std::uint64_t> full{0};
  };
  static constexpr std::uint32_t kNone = UINT32_MAX;
  static constexpr std::uint32_t kCellsInGroup = 8;
  static constexpr std::uint32_t kCellsInWord = 64 * kCellsInGroup;

  /// Bits for so many cells.
  static constexpr std::uint32_t bits_for(std::uint32_t cells) {
    return (cells + kCellsInWord - 1) / kCellsInWord;
  }

  /// @param cells  Words of whole groups, each on a cache line of its own.
  FreeMap(Bits* bits, AtomicCell* cells) : bits_(bits), cells_(cells) {}

  /// Tells searches of a cell that was freed. Between the store of its word and this there must be
  /// a sequentially consistent fence.
  void note_free(std::uint32_t cell) const noexcept {
    std::atomic<std::uint64_t>& full = bits_[cell / kCellsInWord].full;
    const std::uint64_t bit = bit_of(cell / kCellsInGroup);
    if ((full.load(std::memory_order_relaxed) & bit) != 0) {
      full.fetch_and(~bit, std::memory_order_relaxed);
    }
  }

  struct Nothing {
    void operator()() const noexcept {}
  };

  /// The first cell of [first, end), going round from `from`, that seems to be free and that `take`
  /// takes; kNone if there is none by the hints.
  ///
  /// @param looked  Called when no cell of a group was free, before its bit is set; for tests.
  template <class Take, class Looked = Nothing>
  std::uint32_t find(std::uint32_t first, std::uint32_t end, std::uint32_t from, Take&& take,
                     Looked&& looked = {}) const noexcept {
    const std::uint32_t cell = find_in(from, end, take, looked);
    return cell != kNone || from == first ? cell : find_in(first, from, take, looked);
  }

  /// The same without the hints, which it mends.
  template <class Take>
  std::uint32_t scan(std::uint32_t first, std::uint32_t end, Take&& take) const noexcept {
    for (std::uint32_t c = first; c < end; ++c) {
      if (state_of(cells_[c].load(std::memory_order_relaxed)) != CellState::kFree) continue;
      note_free(c);
      if (take(c)) return c;
    }
    return kNone;
  }

 private:
  static constexpr std::uint64_t bit_of(std::uint32_t group) {
    return std::uint64_t{1} << group % 64;
  }

  template <class Take, class Looked>
  std::uint32_t find_in(std::uint32_t first, std::uint32_t end, Take& take,
                        Looked& looked) const noexcept {
    for (std::uint32_t c = first; c < end;) {
      const std::uint32_t group = c / kCellsInGroup;
      // Groups from this one on, to the end of the word.
      const std::uint64_t open =
          ~bits_[group / 64].full.load(std::memory_order_relaxed) >> group % 64;
      if (open == 0) {
        c = (group / 64 + 1) * kCellsInWord;
        continue;
      }
      const std::uint32_t next = group + static_cast<std::uint32_t>(std::countr_zero(open));
      const std::uint32_t begin = next * kCellsInGroup;
      if (begin >= end) break;
      std::uint32_t free = free_in(next, std::memory_order_relaxed);
      if (free == 0) {
        looked();
        mark_full(next);
      }
      for (; free != 0; free &= free - 1) {
        c = begin + static_cast<std::uint32_t>(std::countr_zero(free));
        if (c >= first && c < end && take(c)) return c;
      }
      c = begin + kCellsInGroup;
    }
    return kNone;
  }

  /// One bit for each cell of a group that is free. Without branches, which nobody can predict.
  std::uint32_t free_in(std::uint32_t group, std::memory_order order) const noexcept {
    std::uint32_t free = 0;
#pragma GCC unroll 8
    for (std::uint32_t i = 0; i < kCellsInGroup; ++i) {
      const CellWord word = cells_[group * kCellsInGroup + i].load(order);
      free |= std::uint32_t{state_of(word) == CellState::kFree} << i;
    }
    return free;
  }

  void mark_full(std::uint32_t group) const noexcept {
    std::atomic<std::uint64_t>& full = bits_[group / 64].full;
    // Sequentially consistent, both: see Ordering.
    full.fetch_or(bit_of(group), std::memory_order_seq_cst);  // sync: cells.full
    if (free_in(group, std::memory_order_seq_cst) != 0) {     // sync: cell.word
      full.fetch_and(~bit_of(group), std::memory_order_relaxed);
    }
  }

  Bits* bits_;
  AtomicCell* cells_;
};

}  // namespace flowtrain::lockfree
