#pragma once

#include <cstdint>

#include "channel/cells/release.hpp"
#include "channel/layout/control.hpp"

namespace flowtrain::channel {

/// As lockfree::try_lease, for a slab in memory of a device: only if no stream has yet to write or
/// read it. Not inline, which would make the search of other slabs too large to be inline.
[[gnu::noinline, gnu::cold]] inline bool try_lease_from_streams(const Control& control,
                                                                std::uint16_t lane,
                                                                std::uint32_t cell) noexcept {
  lockfree::AtomicCell& word = control.word(cell);
  // Read first: if the slab was used between the two reads, the word has changed.
  const auto seen = word.load(std::memory_order_acquire);  // sync: cell.word
  return lockfree::state_of(seen) == lockfree::CellState::kFree &&
         control.streams().is_free(cell) && lockfree::try_lease(word, lane, seen);
}

/// Leases a cell of a segment to `lane`, unless it is not free, or its segment has ended since its
/// `word` was read.
inline bool try_lease_segment_cell(const Control& control, const SegmentEntry& entry,
                                   SegmentWord word, std::uint16_t lane,
                                   std::uint32_t cell) noexcept {
  if (entry.kind == memory::Kind::kMemfd) [[likely]] {
    if (!lockfree::try_lease(control.word(cell), lane)) return false;
  } else if (!try_lease_from_streams(control, lane, cell)) {
    return false;
  }
  // A handle that ends a segment first stops leases, then finds every cell free. In the total order
  // of sequentially consistent accesses, either it sees this lease, or the check below sees its
  // write. The fence pairs with the one in SegmentTable::write_claim: the fields of a reused entry
  // are seen only together with its new word. A cell that belongs to another segment by now was
  // free, and is freed at once: meanwhile it only delays the end of that segment, or the search for
  // a place there. If this process dies here, recovery frees the cell.
  std::atomic_thread_fence(std::memory_order_acquire);
  if (entry.word.load(std::memory_order_seq_cst) != word) [[unlikely]] {  // sync: segment.word
    release_cell(control, cell);
    return false;
  }
  return true;
}

}  // namespace flowtrain::channel
