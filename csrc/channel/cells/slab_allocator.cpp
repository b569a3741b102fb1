#include "channel/cells/slab_allocator.hpp"

#include <algorithm>

#include "base/math.hpp"
#include "channel/cells/release.hpp"
#include "channel/cells/segment_lease.hpp"
#include "memory/carve.hpp"

namespace flowtrain::channel {

using lockfree::FreeMap;

namespace {

/// Where the searches of a producer begin, in 2^-32 of a class: 0, 1/2, 1/4, 3/4, 1/8, ... (van der
/// Corput) for the producers by lane, so that they use different cache lines while there is room.
std::uint32_t start_of(const Control& control, std::uint16_t lane) noexcept {
  std::uint32_t before = 0;
  for (std::uint32_t i = 0; i < lane; ++i) {
    const Lane& other = control.lane(i);
    before += other.role == LaneRole::kProducer &&
              other.state.load(std::memory_order_relaxed) == LaneState::kAlive;
  }
  std::uint32_t start = 0;
  for (std::uint32_t half = std::uint32_t{1} << 31; before != 0; before >>= 1, half >>= 1) {
    if (before % 2 != 0) start |= half;
  }
  return start;
}

}  // namespace

SlabAllocator::SlabAllocator(const Control& control, Lanes& lanes, std::uint16_t lane,
                             std::uint16_t home) noexcept
    : control_(control),
      maker_(control, lanes, lane),
      lane_(lane),
      home_(home),
      start_(start_of(control, lane)) {}

std::uint32_t SlabAllocator::try_lease(std::uint64_t bytes, std::uint64_t among) noexcept {
  for (const Search search : {Search::kHinted, Search::kAll}) {
    const std::uint32_t cell = try_segments(search, bytes, among);
    if (cell != kNone) return cell;
  }
  return kNone;
}

std::uint32_t SlabAllocator::try_lease_in(std::uint32_t segment, std::uint64_t bytes) noexcept {
  for (const Search search : {Search::kHinted, Search::kAll}) {
    const std::uint32_t cell = try_segment(search, segment, bytes);
    if (cell != kNone) return cell;
  }
  return kNone;
}

void SlabAllocator::release(std::uint32_t cell, std::uint64_t bytes) noexcept {
  magazine_.push(bytes, cell);
  release_cell(control_, cell);
}

std::uint32_t SlabAllocator::try_segments(Search search, std::uint64_t bytes,
                                          std::uint64_t among) noexcept {
  const std::uint32_t segments = control_.num_segments();
  for (const bool own : {true, false}) {
    for (std::uint32_t i = 0; i < segments; ++i) {
      const auto word =
          control_.segment(i).word.load(std::memory_order_acquire);  // sync: segment.word
      if ((owner_of(word) == home_) != own || (among >> i & 1) == 0) continue;
      const std::uint32_t cell = try_segment(search, i, bytes);
      if (cell != kNone) return cell;
    }
  }
  return kNone;
}

std::uint32_t SlabAllocator::try_segment(Search search, std::uint32_t segment,
                                         std::uint64_t bytes) noexcept {
  const SegmentEntry& entry = control_.segment(segment);
  const SegmentWord word = entry.word.load(std::memory_order_acquire);  // sync: segment.word
  if (state_of(word) != SegmentState::kLive) return kNone;
  if (entry.num_classes > 0) return try_classes(search, entry, word, bytes);
  return try_on_demand(search, segment, word, bytes);
}

std::uint32_t SlabAllocator::try_classes(Search search, const SegmentEntry& entry, SegmentWord word,
                                         std::uint64_t bytes) noexcept {
  const auto try_lease = [&](std::uint32_t c) { return lease(entry, word, c); };
  const std::uint32_t recent = magazine_.pop(bytes);  // Early: the lease waits for its word.
  const CellRange cells = control_.cells_of(entry);
  const std::uint32_t classes = std::min<std::uint32_t>(entry.num_classes, kMaxClasses);
  std::uint32_t smallest = 0;  // Without an early exit, so that no branch depends on the size.
  for (std::uint32_t k = 0; k < classes; ++k) smallest += entry.classes[k].slab_bytes < bytes;
  for (std::uint32_t k = smallest; k < classes; ++k) {
    const ClassEntry& size = entry.classes[k];
    // If the entry is reused meanwhile, these values are arbitrary and may name cells of another
    // segment: `lease` then releases such a cell again.
    const std::uint32_t first = std::max<std::uint32_t>(size.first, cells.first);
    const std::uint32_t end = std::min(first + size.count, cells.end);
    if (first >= end) continue;
    if (first <= recent && recent < end && try_lease(recent)) return recent;
    const std::uint32_t cell = find(search, first, end, try_lease);
    if (cell != kNone) return cell;
  }
  return kNone;
}

/// Leases a free slab of the size for `bytes`, or else has one made.
std::uint32_t SlabAllocator::try_on_demand(Search search, std::uint32_t segment, SegmentWord word,
                                           std::uint64_t bytes) noexcept {
  const SegmentEntry& entry = control_.segment(segment);
  const std::uint64_t all = entry.bytes;
  if (bytes > all) return kNone;
  const std::uint64_t wanted = std::min(memory::slab_bytes_for(bytes), all);
  const CellRange cells = control_.cells_of(entry);
  const std::uint32_t slabs =
      entry.num_slabs.load(std::memory_order_acquire);  // sync: segment.slabs
  const std::uint32_t first = cells.first, end = first + std::min(slabs, cells.end - cells.first);
  std::uint64_t free_bytes = 0;
  const auto try_lease = [&](std::uint32_t c) {
    const std::uint64_t size = control_.cell(c).slab_bytes;
    free_bytes += std::min(size, all);
    if (size != wanted || !lease(entry, word, c)) return false;
    // SlabMaker changes a slab only while its cell is leased: now the size is final.
    if (control_.cell(c).slab_bytes == wanted) return true;
    release_cell(control_, c);
    return false;
  };
  if (first < end) {
    const std::uint32_t cell = find(search, first, end, try_lease);
    if (cell != kNone) return cell;
  }
  const std::uint64_t least = std::max(round_up(bytes, kPageBytes), kPageBytes);
  return maker_.make(segment, word, least, wanted, free_bytes);
}

template <class TryLease>
std::uint32_t SlabAllocator::find(Search search, std::uint32_t first, std::uint32_t end,
                                  TryLease&& try_lease) const noexcept {
  const FreeMap map = control_.free_map();
  return search == Search::kHinted ? map.find(first, end, start_in(first, end), try_lease)
                                   : map.scan(first, end, try_lease);
}

std::uint32_t SlabAllocator::start_in(std::uint32_t first, std::uint32_t end) const noexcept {
  // Always the same place, so that warm slabs are leased again.
  const std::uint64_t groups = (end - first) / FreeMap::kCellsInGroup;
  const auto group = static_cast<std::uint32_t>(groups * start_ >> 32);
  const std::uint32_t cell = first + group * FreeMap::kCellsInGroup;
  return std::max(first, cell - cell % FreeMap::kCellsInGroup);
}

bool SlabAllocator::lease(const SegmentEntry& entry, SegmentWord word,
                          std::uint32_t cell) const noexcept {
  return try_lease_segment_cell(control_, entry, word, lane_, cell);
}

}  // namespace flowtrain::channel
