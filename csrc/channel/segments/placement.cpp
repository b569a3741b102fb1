#include "channel/segments/placement.hpp"

#include <algorithm>
#include <array>
#include <span>

namespace flowtrain::channel {

Placement Placement::find(const Control& control, std::uint32_t cells) noexcept {
  Placement place;
  std::array<CellRange, kMaxSegments + 1> taken;
  std::size_t num_taken = 0;
  for (std::uint32_t i = 0; i < kMaxSegments; ++i) {
    const SegmentEntry& entry = control.segment(i);
    const SegmentWord word = entry.word.load(std::memory_order_acquire);  // sync: segment.word
    if (has_cells(word)) {
      taken[num_taken++] = control.cells_of(entry);
    } else if (generation_of(word) == kLastGeneration) {
      ++place.exhausted_entries;  // One more use would repeat an address.
    } else if (!place.entry) {
      place.entry = i;
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
    place.free_cells += gap;
    place.largest_gap = std::max(place.largest_gap, gap);
    if (gap >= cells && gap < best) {
      best = gap;
      place.first_cell = end;
    }
    end = std::max(end, range.end);
  }
  return place;
}

std::string Placement::shortage(const Control& control, std::uint32_t cells) const {
  const std::string free = std::to_string(free_cells) +
                           " of max_cells=" + std::to_string(control.geometry().max_cells) +
                           " cells are free";
  if (free_cells < cells) {
    return free + "; raise max_cells, drop a segment, or make fewer and larger slabs";
  }
  if (!first_cell) {
    return free + ", but at most " + std::to_string(largest_gap) + " are consecutive, as those " +
           "of a segment must be; raise max_cells, drop a segment, or add several smaller segments";
  }
  const std::string all = "all " + std::to_string(kMaxSegments) + " segments are in use";
  if (exhausted_entries == 0) return all + "; drop a segment, or add fewer and larger ones";
  return all + " or have had their " + std::to_string(kLastGeneration) + " uses (" +
         std::to_string(exhausted_entries) + "); drop a segment, or create a new pool";
}

}  // namespace flowtrain::channel
