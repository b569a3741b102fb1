#include "channel/segments/segment_table.hpp"

#include <algorithm>

#include "base/error.hpp"
#include "channel/segments/placement.hpp"

namespace flowtrain::channel {

SegmentWord SegmentTable::word(std::uint32_t index) const noexcept {
  return control_.segment(index).word.load(std::memory_order_acquire);  // sync: segment.word
}

std::string SegmentTable::name(std::uint32_t index) const {
  return pool_ + "." + std::to_string(index + 1);
}

bool SegmentTable::replace(std::uint32_t index, SegmentWord from, SegmentWord to) noexcept {
  return control_.segment(index).word.compare_exchange_strong(
      from, to, std::memory_order_seq_cst);  // sync: segment.word
}

std::optional<std::uint32_t> SegmentTable::try_claim(const memory::Carving& carving,
                                                     std::uint16_t owner,
                                                     const memory::Place& place) {
  sweep();  // Cells of slabs that were released a moment ago count as free.
  if (!lanes_.try_lock(PoolLock::kAssignment)) return std::nullopt;
  const Placement placement = Placement::find(control_, carving.slabs);
  if (placement.fits()) write_claim(*placement.entry, *placement.first_cell, carving, owner, place);
  lanes_.unlock(PoolLock::kAssignment);
  control_.header().space.notify();  // For producers that found the lock taken.
  if (!placement.fits()) {
    throw PoolSpace("pool '" + pool_ + "': no room for a segment of " +
                    std::to_string(carving.slabs) +
                    " slabs: " + placement.shortage(control_, carving.slabs));
  }
  return placement.entry;
}

/// Under PoolLock::kAssignment. The entry has no cells until its word says kMaking, so a death
/// before that changes nothing; after it, drain_all ends the segment.
void SegmentTable::write_claim(std::uint32_t index, std::uint32_t first_cell,
                               const memory::Carving& carving, std::uint16_t owner,
                               const memory::Place& place) noexcept {
  SegmentEntry& entry = control_.segment(index);
  const SegmentWord before = word(index);
  // A lease that sees the stores below must not mistake the entry for its former use: pairs with
  // the fences in try_lease_segment_cell and segment_infos.
  std::atomic_thread_fence(std::memory_order_release);
  entry.first_cell = first_cell;
  entry.num_cells = carving.slabs;
  entry.bytes = carving.bytes;
  entry.num_slabs.store(0, std::memory_order_relaxed);
  entry.slab_bytes = 0;
  entry.slabs_end = 0;
  entry.kind = place.kind;
  entry.device_high = place.device.high;
  entry.device_low = place.device.low;
  entry.num_classes = static_cast<std::uint16_t>(carving.classes.size());
  for (std::size_t k = 0; k < carving.classes.size(); ++k) {
    const memory::CarvedClass& c = carving.classes[k];
    ClassEntry& size = entry.classes[k];
    size.slab_bytes = c.slab_bytes;
    size.first = first_cell + c.first;
    size.count = c.count;
  }
  // Only the holder of the lock raises these.
  Header& header = control_.header();
  header.num_cells.store(std::max(control_.num_cells(), first_cell + carving.slabs),
                         std::memory_order_release);  // sync: control.num_cells
  header.num_segments.store(std::max(control_.num_segments(), index + 1),
                            std::memory_order_release);  // sync: control.num_segments
  const auto generation = static_cast<std::uint16_t>(generation_of(before) + 1);
  entry.word.store(segment_word(SegmentState::kMaking, generation, owner),
                   std::memory_order_release);  // sync: segment.word
}

void SegmentTable::fill(std::uint32_t index, const memory::Carving& carving) {
  const CellRange cells = control_.cells_of(control_.segment(index));
  if (cells.end - cells.first != carving.slabs) {
    throw PoolCorrupt(text(index) + ": the " + std::to_string(carving.slabs) + " cells reserved " +
                      "for it are missing; the control file was damaged: make the pool anew");
  }
  for (const memory::CarvedClass& c : carving.classes) {
    for (std::uint32_t i = 0; i < c.count; ++i) {
      Cell& cell = control_.cell(cells.first + c.first + i);
      cell.slab = address_of(index, word(index), c.offset + c.slab_bytes * i);
      cell.slab_bytes = c.slab_bytes;
    }
  }
}

void SegmentTable::make_live(std::uint32_t index, SegmentWord claimed) {
  if (!replace(index, claimed, moved(claimed, SegmentState::kLive))) {
    throw PoolCorrupt(text(index) + ": its entry was changed while it was made; the control " +
                      "file was damaged: make the pool anew");
  }
  control_.header().segments_version.fetch_add(
      1, std::memory_order_release);  // sync: control.segments
  control_.header().space.notify();
}

void SegmentTable::cancel(std::uint32_t index, SegmentWord claimed) noexcept {
  // No process used this generation: the next claim of the entry gets it.
  const auto before = static_cast<std::uint16_t>(generation_of(claimed) - 1);
  replace(index, claimed, segment_word(SegmentState::kDead, before, owner_of(claimed)));
}

void SegmentTable::drain(std::uint32_t number, std::uint16_t owner) {
  const bool known = number >= 1 && number <= control_.num_segments();
  const SegmentWord live = known ? word(number - 1) : SegmentWord{};
  if (!known || owner_of(live) != owner || state_of(live) != SegmentState::kLive) {
    throw BadArgument("pool '" + pool_ + "': segment " + std::to_string(number) +
                      " is not one that this handle added and still has; stats() lists them");
  }
  replace(number - 1, live, moved(live, SegmentState::kDraining));
  sweep();
  control_.header().space.notify();  // Waiting producers check again whether memory is left.
}

void SegmentTable::drain_all(std::uint16_t owner) noexcept {
  for (std::uint32_t i = 0; i < kMaxSegments; ++i) {
    const SegmentWord before = word(i);
    if (owner_of(before) != owner) continue;
    if (state_of(before) == SegmentState::kLive) {
      replace(i, before, moved(before, SegmentState::kDraining));
    } else if (state_of(before) == SegmentState::kMaking) {
      replace(i, before, moved(before, SegmentState::kDead));
    }
  }
  sweep();
}

void SegmentTable::sweep() noexcept {
  for (std::uint32_t i = 0; i < control_.num_segments(); ++i) {
    const SegmentWord before = word(i);
    if (state_of(before) != SegmentState::kDraining || in_use(control_.segment(i))) continue;
    if (replace(i, before, moved(before, SegmentState::kDead))) {
      control_.header().segments_version.fetch_add(
          1, std::memory_order_release);  // sync: control.segments
    }
  }
}

bool SegmentTable::in_use(const SegmentEntry& entry) const noexcept {
  const CellRange cells = control_.cells_of(entry);
  const bool streams = entry.kind != memory::Kind::kMemfd;
  for (std::uint32_t c = cells.first; c < cells.end; ++c) {
    const auto word = control_.word(c).load(std::memory_order_seq_cst);  // sync: cell.word
    if (lockfree::state_of(word) != lockfree::CellState::kFree) return true;
    if (streams && !control_.streams().is_free(c)) return true;
  }
  return false;
}

}  // namespace flowtrain::channel
