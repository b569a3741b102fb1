#include "channel/free_room.hpp"

#include <algorithm>
#include <array>
#include <span>

namespace flowtrain::channel {

FreeRoom FreeRoom::find(const Control& control, std::uint32_t cells) noexcept {
  FreeRoom room;
  std::array<CellRange, kMaxSegments + 1> taken;
  std::size_t num_taken = 0;
  for (std::uint32_t i = 0; i < kMaxSegments; ++i) {
    const SegmentEntry& entry = control.segment(i);
    const SegmentWord word = entry.word.load(std::memory_order_acquire);  // sync: segment.word
    if (has_cells(word)) {
      taken[num_taken++] = control.cells_of(entry);
    } else if (generation_of(word) == kLastGeneration) {
      ++room.entries_worn_out;  // With one more use an old address would name it again.
    } else if (!room.entry) {
      room.entry = i;
    }
  }
  const std::uint32_t all = control.geometry().max_cells;
  taken[num_taken++] = {all, all};
  const std::span ranges(taken.data(), num_taken);
  std::sort(ranges.begin(), ranges.end(),
            [](const CellRange& a, const CellRange& b) { return a.first < b.first; });
  std::uint32_t end = 0, best = UINT32_MAX;
  for (const CellRange& range : ranges) {
    const std::uint32_t gap = range.first - std::min(end, range.first);
    room.free_cells += gap;
    room.largest_gap = std::max(room.largest_gap, gap);
    if (gap >= cells && gap < best) {
      best = gap;
      room.first_cell = end;
    }
    end = std::max(end, range.end);
  }
  return room;
}

std::string FreeRoom::shortage(const Control& control, std::uint32_t cells) const {
  const std::string free = std::to_string(free_cells) +
                           " of max_cells=" + std::to_string(control.geometry().max_cells) +
                           " cells are free";
  if (free_cells < cells) {
    return free + "; raise max_cells, drop a segment, or make fewer and larger slabs";
  }
  if (!first_cell) {
    return free + ", but only " + std::to_string(largest_gap) + " in a row, as a segment needs " +
           "them; raise max_cells, drop a segment, or make several smaller ones";
  }
  const std::string for_good =
      entries_worn_out == 0
          ? ""
          : ", " + std::to_string(entries_worn_out) + " of them for good, after " +
                std::to_string(kLastGeneration) + " uses (then make the pool anew)";
  return "all " + std::to_string(kMaxSegments) + " segments are taken" + for_good +
         "; drop a segment, or make fewer and larger ones";
}

}  // namespace flowtrain::channel
