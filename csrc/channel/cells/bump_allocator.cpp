#include "channel/cells/bump_allocator.hpp"

#include <algorithm>

namespace flowtrain::channel {

void BumpAllocator::add_slab(std::uint32_t segment, std::uint64_t min_bytes,
                             std::uint64_t bytes) noexcept {
  SegmentEntry& entry = control_.segment(segment);
  const auto is_resetting = [&entry] {
    return entry.reset_epoch.load(std::memory_order_acquire) % 2 != 0;  // sync: segment.epoch
  };
  // Waiting producers call this again and again: no system call if it cannot succeed.
  if (!is_resetting() && !find_room(entry, min_bytes) && !is_unused(entry)) return;
  if (!lanes_.try_lock(PoolLock::kAssignment)) return;
  const SegmentWord word = entry.word.load(std::memory_order_acquire);  // sync: segment.word
  if (state_of(word) == SegmentState::kLive && entry.num_classes == 0) {
    // A process that died during a reset left the epoch odd, which blocks leases.
    const bool odd = is_resetting();
    std::optional<Room> room;
    if (!odd) room = find_room(entry, min_bytes);
    if (!room && reset(entry)) room = find_room(entry, min_bytes);
    if (room) {
      Cell& cell = control_.cell(room->first_cell + room->num_slabs);
      cell.slab = memory::make_address(generation_of(word), static_cast<std::uint8_t>(segment + 1),
                                       room->offset);
      cell.slab_bytes = std::min(bytes, room->bytes);
      entry.num_slabs.store(room->num_slabs + 1, std::memory_order_release);  // sync: segment.slabs
    }
  }
  lanes_.unlock(PoolLock::kAssignment);
  // Other producers may have found the lock taken, or the epoch odd.
  control_.header().space.notify();
}

std::optional<BumpAllocator::Room> BumpAllocator::find_room(
    const SegmentEntry& entry, std::uint64_t min_bytes) const noexcept {
  const CellRange cells = control_.cells_of(entry);
  const std::uint32_t slabs =
      entry.num_slabs.load(std::memory_order_acquire);  // sync: segment.slabs
  if (slabs >= cells.end - cells.first) return std::nullopt;
  const std::uint64_t all = entry.bytes;
  std::uint64_t offset = 0;
  if (slabs > 0) {
    const Cell& last = control_.cell(cells.first + slabs - 1);
    offset = memory::offset_of(last.slab) + std::min<std::uint64_t>(last.slab_bytes, all);
  }
  if (offset > all || min_bytes > all - offset) return std::nullopt;
  return Room{cells.first, slabs, offset, all - offset};
}

bool BumpAllocator::is_unused(const SegmentEntry& entry) const noexcept {
  const CellRange cells = control_.cells_of(entry);
  for (std::uint32_t c = cells.first; c < cells.end; ++c) {
    const auto word = control_.word(c).load(std::memory_order_seq_cst);  // sync: cell.word
    if (lockfree::state_of(word) != lockfree::CellState::kFree) return false;
  }
  return true;
}

bool BumpAllocator::reset(SegmentEntry& entry) noexcept {
  const std::uint32_t epoch = entry.reset_epoch.load(std::memory_order_relaxed) | 1;
  // In one total order with leases, see SlabAllocator::try_lease_cell: either the scan sees a
  // lease, or the lease sees the epoch.
  entry.reset_epoch.store(epoch, std::memory_order_seq_cst);  // sync: segment.epoch
  const bool unused = is_unused(entry);
  if (unused) entry.num_slabs.store(0, std::memory_order_release);  // sync: segment.slabs
  entry.reset_epoch.store(epoch + 1, std::memory_order_release);    // sync: segment.epoch
  return unused;
}

}  // namespace flowtrain::channel
