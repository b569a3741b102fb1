#include "channel/cutter.hpp"

#include <algorithm>

namespace flowtrain::channel {

void Cutter::cut(std::uint32_t segment, std::uint64_t least, std::uint64_t wanted) noexcept {
  SegmentEntry& entry = control_.segment(segment);
  const auto is_undoing = [&entry] {
    return entry.cut_epoch.load(std::memory_order_acquire) % 2 != 0;  // sync: segment.epoch
  };
  // Who waits for space asks again and again: no system call while the answer is no.
  if (!is_undoing() && !find_room(entry, least) && !is_unused(entry)) return;
  if (!lanes_.try_take(Lanes::Right::kCarve)) return;
  const SegmentWord word = entry.word.load(std::memory_order_acquire);  // sync: segment.word
  if (state_of(word) == SegmentState::kLive && entry.num_classes == 0) {
    // A cutter that died while undoing left the epoch odd, and allocations turned away by it.
    const bool odd = is_undoing();
    std::optional<Room> room;
    if (!odd) room = find_room(entry, least);
    if (!room && undo(entry)) room = find_room(entry, least);
    if (room) {
      Cell& cell = control_.cell(room->first_cell + room->cut);
      cell.slab = memory::make_address(generation_of(word), static_cast<std::uint8_t>(segment + 1),
                                       room->offset);
      cell.slab_bytes = std::min(wanted, room->bytes);
      entry.num_cut.store(room->cut + 1, std::memory_order_release);  // sync: segment.cut
    }
  }
  lanes_.give_back(Lanes::Right::kCarve);
  // Others may have been turned away meanwhile.
  control_.header().space.notify();
}

std::optional<Cutter::Room> Cutter::find_room(const SegmentEntry& entry,
                                              std::uint64_t least) const noexcept {
  const CellRange cells = control_.cells_of(entry);
  const std::uint32_t cut = entry.num_cut.load(std::memory_order_acquire);  // sync: segment.cut
  if (cut >= cells.end - cells.first) return std::nullopt;
  const std::uint64_t all = entry.bytes;
  std::uint64_t offset = 0;
  if (cut > 0) {
    const Cell& last = control_.cell(cells.first + cut - 1);
    offset = memory::offset_of(last.slab) + std::min<std::uint64_t>(last.slab_bytes, all);
  }
  if (offset > all || least > all - offset) return std::nullopt;
  return Room{cells.first, cut, offset, all - offset};
}

bool Cutter::is_unused(const SegmentEntry& entry) const noexcept {
  const CellRange cells = control_.cells_of(entry);
  for (std::uint32_t c = cells.first; c < cells.end; ++c) {
    const auto word = control_.word(c).load(std::memory_order_seq_cst);  // sync: cell.word
    if (lockfree::state_of(word) != lockfree::CellState::kFree) return false;
  }
  return true;
}

bool Cutter::undo(SegmentEntry& entry) noexcept {
  const std::uint32_t epoch = entry.cut_epoch.load(std::memory_order_relaxed) | 1;
  // In one order with allocations, see Slabs::try_own: either the scan sees an allocation, or
  // the allocation sees the epoch.
  entry.cut_epoch.store(epoch, std::memory_order_seq_cst);  // sync: segment.epoch
  const bool unused = is_unused(entry);
  if (unused) entry.num_cut.store(0, std::memory_order_release);  // sync: segment.cut
  entry.cut_epoch.store(epoch + 1, std::memory_order_release);    // sync: segment.epoch
  return unused;
}

}  // namespace flowtrain::channel
