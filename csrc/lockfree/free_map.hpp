#pragma once

#include <atomic>
#include <bit>
#include <cstdint>

#include "base/math.hpp"
#include "lockfree/cell_word.hpp"

namespace flowtrain::lockfree {

/// Hints at free cells, so that a search need not read every word. Each group of eight cells, whose
/// words share a cache line, has one bit: set if no cell of the group was free when a search last
/// read it.
///
/// Memory:   placed by the caller; zero bytes mean that any cell may be free.
/// Threads:  any number, in any processes.
/// Progress: a search reads each group at most twice; note_free is wait-free.
/// Ordering: a cell's word is the truth, a bit only a hint. A thread that frees a cell stores the
///           word, then reads the bit; a thread that sets the bit then reads the words again. One
///           of the two sees the other's write. A death in between can leave free cells in a group
///           whose bit is set; `scan` finds them.
/// Errors:   never throws.
class FreeMap {
 public:
  /// On a cache line of its own, so that lanes that work in different groups do not share one.
  struct alignas(kCacheLine) Bits {
    std::atomic<std::uint64_t> full{0};
  };
  static constexpr std::uint32_t kNone = UINT32_MAX;
  static constexpr std::uint32_t kCellsInGroup = 8;
  static constexpr std::uint32_t kCellsInWord = 64 * kCellsInGroup;

  /// Number of Bits for `cells` cells.
  static constexpr std::uint32_t bits_for(std::uint32_t cells) {
    return (cells + kCellsInWord - 1) / kCellsInWord;
  }

  /// @param cells  Words of whole groups, each group on a cache line of its own.
  FreeMap(Bits* bits, AtomicCell* cells) : bits_(bits), cells_(cells) {}

  /// Clears the bit of a cell that was freed. The caller has a sequentially consistent fence
  /// between the store of the word and this call.
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

  /// Searches [first, end), from `from` on and around, the groups whose bit is not set. Returns the
  /// first cell that is free and that `try_lease` accepts, or kNone.
  ///
  /// @param before_mark  Called before the bit of a group without a free cell is set; for tests.
  template <class TryLease, class BeforeMark = Nothing>
  std::uint32_t find(std::uint32_t first, std::uint32_t end, std::uint32_t from,
                     TryLease&& try_lease, BeforeMark&& before_mark = {}) const noexcept {
    const std::uint32_t cell = find_in(from, end, try_lease, before_mark);
    return cell != kNone || from == first ? cell : find_in(first, from, try_lease, before_mark);
  }

  /// Searches all words of [first, end), and clears the bits that hide a free cell.
  template <class TryLease>
  std::uint32_t scan(std::uint32_t first, std::uint32_t end, TryLease&& try_lease) const noexcept {
    for (std::uint32_t c = first; c < end; ++c) {
      if (state_of(cells_[c].load(std::memory_order_relaxed)) != CellState::kFree) continue;
      note_free(c);
      if (try_lease(c)) return c;
    }
    return kNone;
  }

 private:
  static constexpr std::uint64_t bit_of(std::uint32_t group) {
    return std::uint64_t{1} << group % 64;
  }

  template <class TryLease, class BeforeMark>
  std::uint32_t find_in(std::uint32_t first, std::uint32_t end, TryLease& try_lease,
                        BeforeMark& before_mark) const noexcept {
    for (std::uint32_t c = first; c < end;) {
      const std::uint32_t group = c / kCellsInGroup;
      // One bit for each group from this one to the end of the word.
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
        before_mark();
        mark_full(next);
      }
      for (; free != 0; free &= free - 1) {
        c = begin + static_cast<std::uint32_t>(std::countr_zero(free));
        if (c >= first && c < end && try_lease(c)) return c;
      }
      c = begin + kCellsInGroup;
    }
    return kNone;
  }

  /// One bit for each free cell of a group. Branches here would be unpredictable.
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
    // Both sequentially consistent: see Ordering.
    full.fetch_or(bit_of(group), std::memory_order_seq_cst);  // sync: cells.full
    if (free_in(group, std::memory_order_seq_cst) != 0) {     // sync: cell.word
      full.fetch_and(~bit_of(group), std::memory_order_relaxed);
    }
  }

  Bits* bits_;
  AtomicCell* cells_;
};

}  // namespace flowtrain::lockfree
