#include "channel/cells/slab_maker.hpp"

#include <algorithm>

#include "base/cpu.hpp"
#include "channel/cells/segment_lease.hpp"
#include "memory/carve.hpp"

namespace flowtrain::channel {
namespace {

// Others hold the lock for microseconds, unless they were stopped.
constexpr int kLockTries = 64;
// Others may lease a slab in the place that was found.
constexpr int kPlaceTries = 4;

constexpr int kCellBits = 24;
static_assert(lockfree::kMaxCells <= std::uint32_t{1} << kCellBits);
static_assert(memory::kOffsetBits + kCellBits <= 64);

/// Cell of an entry of the list of slabs.
std::uint32_t cell_of(std::uint64_t slab) noexcept {
  return static_cast<std::uint32_t>(slab & (lockfree::kMaxCells - 1));
}

/// A process that dies between the stores around this has made all stores before it.
void store_in_order() noexcept { std::atomic_thread_fence(std::memory_order_release); }

}  // namespace

std::uint32_t SlabMaker::make(std::uint32_t segment, SegmentWord word, std::uint64_t least,
                              std::uint64_t wanted, std::uint64_t free_bytes) noexcept {
  const Task task{control_.segment(segment), segment, word, least, wanted};
  // Waiting producers call this again and again: no system call if it cannot succeed.
  if (!end_of_slabs(task)) {
    const std::uint64_t all = task.entry.bytes;
    const std::uint64_t gaps = all - std::min<std::uint64_t>(task.entry.slab_bytes, all);
    if (free_bytes + gaps < least || !find_place(task)) return kNone;
  }
  if (!try_lock()) return kNone;
  const bool is_current =
      task.entry.word.load(std::memory_order_acquire) == word;  // sync: segment.word
  const std::uint32_t cell = is_current ? make_locked(task) : kNone;
  lanes_.unlock(PoolLock::kAssignment);
  // Others may have found the lock taken. After a failure they would wake this producer in turn.
  if (cell != kNone) control_.header().space.notify();
  return cell;
}

void SlabMaker::shrink(std::uint32_t c, std::uint64_t bytes) noexcept {
  Cell& cell = control_.cell(c);
  const std::uint32_t segment = memory::segment_of(cell.slab) - 1U;
  if (segment >= kMaxSegments) return;  // The file was damaged.
  SegmentEntry& entry = control_.segment(segment);
  const memory::Extent slab = extent_of(c);
  const std::uint64_t kept = memory::slab_bytes_for(bytes);
  // Streams of a device may still write what they were told to before the item shrank.
  if (entry.kind != memory::Kind::kMemfd) return;
  if (entry.num_classes > 0 || kept >= slab.bytes || !try_lock()) return;
  subtract(entry, slab.bytes - kept);
  cell.slab_bytes = kept;
  store_in_order();
  if (entry.slabs_end == slab.offset + slab.bytes) entry.slabs_end = slab.offset + kept;
  lanes_.unlock(PoolLock::kAssignment);
}

bool SlabMaker::try_lock() noexcept {
  for (int tries = 0; tries < kLockTries; ++tries) {
    if (lanes_.try_lock(PoolLock::kAssignment)) return true;
    pause_core();
  }
  return false;
}

std::uint32_t SlabMaker::make_locked(const Task& task) noexcept {
  for (int tries = 0; tries < kPlaceTries; ++tries) {
    std::uint32_t cell = kNone;
    if (const auto end = end_of_slabs(task)) {
      cell = make_at_end(task, *end);
    } else {
      const auto place = find_place(task);
      if (!place) return kNone;
      cell = make_at(task, *place);
    }
    if (cell != kNone) return cell;
  }
  return kNone;
}

/// Reads the entry once: another process may change it between the check and the use.
std::optional<SlabMaker::End> SlabMaker::end_of_slabs(const Task& task) const noexcept {
  const CellRange cells = control_.cells_of(task.entry);
  const std::uint32_t slabs =
      task.entry.num_slabs.load(std::memory_order_acquire);  // sync: segment.slabs
  const std::uint64_t all = task.entry.bytes, end = task.entry.slabs_end;
  if (slabs >= cells.end - cells.first || end > all || task.wanted > all - end) return {};
  return End{cells.first + slabs, {end, task.wanted}};
}

/// Finds a place among the slabs. Without the lock the result is a hint.
std::optional<memory::Extent> SlabMaker::find_place(const Task& task) noexcept {
  list_slabs(task);
  memory::Fit fit(task.entry.bytes, task.least, task.wanted);
  for (const std::uint64_t slab : slabs_) {
    const std::uint32_t c = cell_of(slab);
    const auto word = control_.word(c).load(std::memory_order_relaxed);
    const bool streams = task.entry.kind != memory::Kind::kMemfd;
    const bool is_free = lockfree::state_of(word) == lockfree::CellState::kFree &&
                         (!streams || control_.streams().is_free(c));
    fit.pass(extent_of(c), is_free);
  }
  return fit.place();
}

/// Lists the slabs by offset. Sorts only those that were not there at the last call: among
/// thousands, few change from one call to the next.
void SlabMaker::list_slabs(const Task& task) noexcept {
  const CellRange cells = control_.cells_of(task.entry);
  const std::uint32_t slabs =
      task.entry.num_slabs.load(std::memory_order_acquire);  // sync: segment.slabs
  const std::uint32_t first = cells.first, end = first + std::min(slabs, cells.end - first);
  listed_.assign(end - first, false);
  std::erase_if(slabs_, [&](std::uint64_t slab) {
    const std::uint32_t c = cell_of(slab);
    if (c < first || c >= end) return true;
    const memory::Extent now = extent_of(c);
    listed_[c - first] = now.bytes > 0 && slab == (now.offset << kCellBits | c);
    return !listed_[c - first];
  });
  const auto old = static_cast<std::ptrdiff_t>(slabs_.size());
  for (std::uint32_t c = first; c < end; ++c) {
    if (listed_[c - first]) continue;
    const memory::Extent slab = extent_of(c);
    if (slab.bytes > 0) slabs_.push_back(slab.offset << kCellBits | c);
  }
  std::sort(slabs_.begin() + old, slabs_.end());
  std::inplace_merge(slabs_.begin(), slabs_.begin() + old, slabs_.end());
}

std::uint32_t SlabMaker::make_at_end(const Task& task, const End& end) noexcept {
  leased_.clear();
  if (!lease(task, end.cell)) return kNone;
  write(task, end.cell, end.place);
  return end.cell;
}

std::uint32_t SlabMaker::make_at(const Task& task, const memory::Extent& place) noexcept {
  leased_.clear();
  std::uint32_t cell = kNone;
  if (lease_slabs_in(task, place) && (!leased_.empty() || lease_spare(task))) {
    dissolve(task);
    // The first cells are used again and again, so that `trim` can shorten the list.
    const auto lowest = std::min_element(leased_.begin(), leased_.end());
    cell = *lowest;
    leased_.erase(lowest);
    write(task, cell, place);
    trim(task);
  }
  for (const std::uint32_t c : leased_) release_cell(control_, c);
  return cell;
}

/// Leases all slabs of which `place` has a byte; false if one of them is in use by now.
bool SlabMaker::lease_slabs_in(const Task& task, const memory::Extent& place) noexcept {
  for (const std::uint64_t slab : slabs_) {
    const std::uint32_t c = cell_of(slab);
    const memory::Extent extent = extent_of(c);
    const bool apart =
        extent.offset >= place.offset + place.bytes || extent.offset + extent.bytes <= place.offset;
    if (!apart && !lease(task, c)) return false;
  }
  return true;
}

/// Leases a cell for a place without slabs: one without a slab, or else any free one.
bool SlabMaker::lease_spare(const Task& task) noexcept {
  const CellRange cells = control_.cells_of(task.entry);
  const std::uint32_t slabs = task.entry.num_slabs.load(std::memory_order_relaxed);
  const std::uint32_t end = cells.first + std::min(slabs, cells.end - cells.first);
  for (const bool with_slab : {false, true}) {
    for (std::uint32_t c = cells.first; c < end; ++c) {
      if ((control_.cell(c).slab_bytes > 0) == with_slab && lease(task, c)) return true;
    }
    if (!with_slab && end < cells.end && lease(task, end)) return true;
  }
  return false;
}

bool SlabMaker::lease(const Task& task, std::uint32_t cell) noexcept {
  if (!try_lease_segment_cell(control_, task.entry, task.word, lane_, cell)) return false;
  leased_.push_back(cell);
  return true;
}

/// Subtracts from the sum of the slabs, before a slab loses the bytes: so the sum is never more
/// than the slabs have, see `make`.
void SlabMaker::subtract(SegmentEntry& entry, std::uint64_t bytes) noexcept {
  const std::uint64_t before = entry.slab_bytes;
  entry.slab_bytes = before - std::min(bytes, before);
  store_in_order();
}

void SlabMaker::dissolve(const Task& task) noexcept {
  for (const std::uint32_t c : leased_) {
    Cell& cell = control_.cell(c);
    subtract(task.entry, cell.slab_bytes);
    cell.slab_bytes = 0;
  }
}

/// Gives a leased cell without a slab its slab.
void SlabMaker::write(const Task& task, std::uint32_t c, const memory::Extent& place) noexcept {
  SegmentEntry& entry = task.entry;
  Cell& cell = control_.cell(c);
  cell.slab_bytes = 0;  // It may be that of a former segment.
  entry.slabs_end = std::max<std::uint64_t>(entry.slabs_end, place.offset + place.bytes);
  store_in_order();
  const std::uint32_t slabs = entry.num_slabs.load(std::memory_order_relaxed);
  entry.num_slabs.store(std::max(slabs, c + 1 - control_.cells_of(entry).first),
                        std::memory_order_release);  // sync: segment.slabs
  cell.slab = memory::make_address(generation_of(task.word),
                                   static_cast<std::uint8_t>(task.segment + 1), place.offset);
  store_in_order();
  cell.slab_bytes = place.bytes;
  store_in_order();
  entry.slab_bytes = entry.slab_bytes + place.bytes;
}

/// Sets the ends and the sum of the slabs anew. So the list of slabs becomes short again after
/// many small ones, and what a dead process left is corrected.
void SlabMaker::trim(const Task& task) noexcept {
  const CellRange cells = control_.cells_of(task.entry);
  const std::uint32_t slabs = task.entry.num_slabs.load(std::memory_order_relaxed);
  std::uint32_t end = cells.first;
  std::uint64_t bytes = 0, slabs_end = 0;
  for (std::uint32_t c = cells.first; c < cells.first + std::min(slabs, cells.end - cells.first);
       ++c) {
    const memory::Extent slab = extent_of(c);
    if (slab.bytes == 0) continue;
    end = c + 1;
    bytes += slab.bytes;
    slabs_end = std::max(slabs_end, slab.offset + slab.bytes);
  }
  task.entry.slab_bytes = bytes;
  task.entry.slabs_end = slabs_end;
  task.entry.num_slabs.store(end - cells.first, std::memory_order_release);  // sync: segment.slabs
}

std::string SlabMaker::shortage(const Control& control, std::uint32_t segment,
                                std::uint64_t bytes) {
  const SegmentEntry& entry = control.segment(segment);
  const auto word = entry.word.load(std::memory_order_acquire);  // sync: segment.word
  if (state_of(word) != SegmentState::kLive || entry.num_classes > 0) return "";
  const CellRange range = control.cells_of(entry);
  const std::uint32_t cells = range.end - range.first;
  const std::uint64_t all = entry.bytes;
  const std::uint64_t gaps = all - std::min<std::uint64_t>(entry.slab_bytes, all);
  if (entry.num_slabs.load(std::memory_order_relaxed) < cells || gaps < bytes) return "";
  return "; segment " + std::to_string(segment + 1) + " can have " + std::to_string(cells) +
         " slabs, a part of max_cells=" + std::to_string(control.geometry().max_cells) + ", and " +
         std::to_string(gaps) + " of its " + std::to_string(all) +
         " bytes are in none: give Pool.create a larger max_cells, or lease fewer, larger items";
}

memory::Extent SlabMaker::extent_of(std::uint32_t cell) const noexcept {
  const Cell& slab = control_.cell(cell);
  return {memory::offset_of(slab.slab),
          std::min<std::uint64_t>(slab.slab_bytes, memory::kMaxSegmentBytes)};
}

}  // namespace flowtrain::channel
