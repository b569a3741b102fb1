#include "channel/cutter.hpp"

#include <algorithm>

namespace flowtrain::channel {

void Cutter::cut(std::uint32_t segment, std::uint64_t least, std::uint64_t wanted) noexcept {
  SegmentEntry& entry = control_.segment(segment);
  // Who waits for space asks again and again: no system call while the answer is no.
  if (!has_room(entry, least) && !is_unused(entry)) return;
  const std::unique_lock lock(mutex_, std::try_to_lock);
  if (!lock || !lanes_.try_take(Lanes::Right::kCut)) return;
  const SegmentWord word = entry.word.load(std::memory_order_acquire);  // sync: segment.word
  // A cutter that died while undoing left the epoch odd, and allocations turned away by it.
  const bool odd = entry.cut_epoch.load(std::memory_order_acquire) % 2 != 0;  // sync: segment.epoch
  if (state_of(word) == SegmentState::kLive && entry.num_classes == 0 &&
      ((!odd && has_room(entry, least)) || undo(entry))) {
    const std::uint32_t n = entry.num_cut.load(std::memory_order_relaxed);
    const std::uint64_t start = end_of_cuts(entry);
    Cell& cell = control_.cell(entry.first_cell + n);
    cell.slab =
        memory::make_address(generation_of(word), static_cast<std::uint16_t>(segment + 1), start);
    cell.slab_bytes = std::min(wanted, entry.bytes - start);
    entry.num_cut.store(n + 1, std::memory_order_release);  // sync: segment.cut
  }
  lanes_.give_back(Lanes::Right::kCut);
  // Others may have been turned away meanwhile.
  control_.header().space.notify();
}

bool Cutter::has_room(const SegmentEntry& entry, std::uint64_t bytes) const noexcept {
  return entry.num_cut.load(std::memory_order_relaxed) < entry.num_cells &&
         bytes <= entry.bytes - end_of_cuts(entry);
}

bool Cutter::is_unused(const SegmentEntry& entry) const noexcept {
  for (std::uint32_t c = entry.first_cell; c < entry.first_cell + entry.num_cells; ++c) {
    const auto word = control_.word(c).load(std::memory_order_seq_cst);  // sync: cell.word
    if (lockfree::state_of(word) != lockfree::CellState::kFree) return false;
  }
  return true;
}

std::uint64_t Cutter::end_of_cuts(const SegmentEntry& entry) const noexcept {
  const std::uint32_t n = entry.num_cut.load(std::memory_order_acquire);  // sync: segment.cut
  if (n == 0) return 0;
  const Cell& last = control_.cell(entry.first_cell + n - 1);
  return memory::offset_of(last.slab) + last.slab_bytes;
}

bool Cutter::undo(SegmentEntry& entry) noexcept {
  const std::uint32_t epoch = entry.cut_epoch.load(std::memory_order_relaxed) | 1;
  // In one order with allocations, see Producer::try_own: either the scan sees an allocation, or
  // the allocation sees the epoch.
  entry.cut_epoch.store(epoch, std::memory_order_seq_cst);  // sync: segment.epoch
  const bool unused = is_unused(entry);
  if (unused) entry.num_cut.store(0, std::memory_order_release);  // sync: segment.cut
  entry.cut_epoch.store(epoch + 1, std::memory_order_release);    // sync: segment.epoch
  return unused;
}

}  // namespace flowtrain::channel
