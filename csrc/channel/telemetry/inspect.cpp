#include "channel/telemetry/inspect.hpp"

#include <algorithm>
#include <map>
#include <optional>

#include "base/error.hpp"
#include "channel/layout/names.hpp"
#include "os/folder.hpp"

namespace flowtrain::channel {
std::vector<SegmentInfo> segment_infos(const Control& control) {
  std::vector<SegmentInfo> infos;
  for (std::uint32_t i = 0; i < control.num_segments(); ++i) {
    const SegmentEntry& entry = control.segment(i);
    const SegmentWord word = entry.word.load(std::memory_order_acquire);  // sync: segment.word
    const memory::Place place = entry.place();
    if (!has_memory(word) || !is_valid(place)) continue;
    const CellRange cells = control.cells_of(entry);
    const std::uint32_t end =
        cells.first + std::min<std::uint32_t>(entry.num_classes > 0
                                                  ? UINT32_MAX
                                                  : entry.num_slabs.load(std::memory_order_relaxed),
                                              cells.end - cells.first);
    SegmentInfo info{i + 1, control.label_of(owner_of(word)), place, entry.bytes, 0, 0, 0, 0, {}};
    std::map<std::uint64_t, ClassInfo> classes;
    for (std::uint32_t c = cells.first; c < end; ++c) {
      const std::uint64_t slab_bytes = control.cell(c).slab_bytes;
      if (slab_bytes == 0) continue;  // It has no slab, see SlabMaker.
      ++info.slabs;
      ClassInfo& size = classes.try_emplace(slab_bytes, ClassInfo{slab_bytes, 0, 0}).first->second;
      ++size.slabs;
      const auto cell = control.word(c).load(std::memory_order_relaxed);
      if (lockfree::state_of(cell) == lockfree::CellState::kFree) continue;
      ++size.slabs_in_use;
      ++info.slabs_in_use;
      info.bytes_in_use += slab_bytes;
      info.bytes_unused +=
          slab_bytes - std::min<std::uint64_t>(control.cell(c).item_bytes, slab_bytes);
    }
    for (const auto& [bytes, size] : classes) info.classes.push_back(size);
    // Pairs with the fence in SegmentTable::write_claim. If the segment ended meanwhile, another
    // one may have its entry and cells by now.
    std::atomic_thread_fence(std::memory_order_acquire);
    const SegmentWord now = entry.word.load(std::memory_order_relaxed);
    if (!has_memory(now) || generation_of(now) != generation_of(word)) continue;
    infos.push_back(std::move(info));
  }
  return infos;
}

std::vector<RingInfo> ring_infos(const Control& control) {
  std::vector<RingInfo> infos;
  for (std::uint32_t i = 0; i < control.geometry().num_rings; ++i) {
    infos.push_back({control.ring_header(i).name, 0, 0});
  }
  for (std::uint32_t c = 0; c < control.num_cells(); ++c) {
    const auto word = control.word(c).load(std::memory_order_acquire);  // sync: cell.word
    if (lockfree::state_of(word) != lockfree::CellState::kPublished) continue;
    const Cell& cell = control.cell(c);
    const std::uint16_t ring = cell.ring;
    if (ring >= infos.size()) continue;
    ++infos[ring].items;
    infos[ring].bytes += cell.item_bytes;
  }
  return infos;
}

Observer::Observer(const std::string& name) : name_(name) {
  check_name("pool", name);
  const std::string path = os::runtime_folder() + "/" + name + "/control";
  file_ = os::open_file(path);
  std::optional<Control> control = file_ ? Control::find(file_, path) : std::nullopt;
  if (!control) {
    throw PoolNotFound("pool '" + name + "': there is none in " + os::runtime_folder() +
                       "; list_pools() lists all pools");
  }
  control_ = std::move(*control);
  lanes_ = std::make_unique<Lanes>(control_, file_);
}

}  // namespace flowtrain::channel
