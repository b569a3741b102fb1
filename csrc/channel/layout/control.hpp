#pragma once

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <optional>
#include <string>

#include "base/math.hpp"
#include "channel/layout/cell.hpp"
#include "channel/layout/header.hpp"
#include "channel/layout/lane.hpp"
#include "channel/layout/ring_header.hpp"
#include "channel/layout/segment_entry.hpp"
#include "channel/telemetry/record.hpp"
#include "lockfree/free_map.hpp"
#include "lockfree/index_ring.hpp"
#include "memory/stream_page.hpp"
#include "os/mapping.hpp"

namespace flowtrain::channel {

/// The mapped control file: typed access to its tables.
///
/// Every process of the pool can write all of the file, so a number read from it is input: it is
/// read once and checked against `geometry`, this handle's own copy of the sizes, before it becomes
/// an index. `num_cells`, `num_segments`, `cells_of`, `label_of`, `name_of` and `ring_name` check;
/// `lane`, `cell` and the like rely on their callers.
///
/// Memory:   `header | lanes | records | segments | cell words | free map | cells | ring
///           headers | ring slots | stream words`; no pointers, every table starts on a cache line,
///           and the last one, which devices map, on a page.
/// Threads:  any; each table says which of its words are shared.
/// Progress: address arithmetic.
/// Ordering: control.admission publishes the header to openers.
/// Errors:   PoolCorrupt if a file is not a pool of this version.
class Control {
 public:
  Control() = default;

  static std::uint64_t file_bytes(const Geometry& geometry);
  /// Writes the header of a new file of zeros. Openers accept the file once `header().admission`
  /// says so.
  static Control make(const os::Fd& file, const std::string& path, const Geometry& geometry);
  /// Maps the pool in a file; nothing if its creator has not finished it.
  ///
  /// Errors: PoolCorrupt for a file of another version, or with impossible sizes.
  static std::optional<Control> find(const os::Fd& file, const std::string& path);

  /// Leaves the tables mapped until the process ends, since streams of a device use them.
  void keep_mapped() { mapping_.keep(); }

  Header& header() const { return *reinterpret_cast<Header*>(mapping_.data()); }
  const Geometry& geometry() const { return geometry_; }
  Lane& lane(std::uint32_t i) const { return at<Lane>(lanes_)[i]; }
  LaneRecord& record(std::uint32_t lane) const { return at<LaneRecord>(records_)[lane]; }
  SegmentEntry& segment(std::uint32_t i) const { return at<SegmentEntry>(segments_)[i]; }
  lockfree::AtomicCell& word(std::uint32_t i) const { return at<lockfree::AtomicCell>(words_)[i]; }
  Cell& cell(std::uint32_t i) const { return at<Cell>(cells_)[i]; }
  lockfree::FreeMap free_map() const {
    return {at<lockfree::FreeMap::Bits>(full_), at<lockfree::AtomicCell>(words_)};
  }
  /// Words by which streams hand over slabs in memory of a device, by cell. They are here, so that
  /// they outlive each process, and any handle can settle a dead one's.
  memory::StreamPage streams() const { return {at<std::byte>(streams_), geometry_.max_cells}; }
  RingHeader& ring_header(std::uint32_t i) const { return at<RingHeader>(rings_)[i]; }
  template <class Hooks = lockfree::NoHooks>
  lockfree::IndexRing<Hooks> ring(std::uint32_t i) const {
    return {&ring_header(i).hints,
            at<lockfree::AtomicSlot>(slots_) + std::uint64_t{i} * geometry_.ring_capacity,
            geometry_.ring_capacity, at<lockfree::AtomicCell>(words_), geometry_.max_cells};
  }
  /// End of the cells that any segment has had.
  std::uint32_t num_cells() const {
    return std::min(header().num_cells.load(std::memory_order_acquire),  // sync: control.num_cells
                    geometry_.max_cells);
  }
  std::uint32_t num_segments() const {
    return std::min(
        header().num_segments.load(std::memory_order_acquire),  // sync: control.num_segments
        kMaxSegments);
  }
  /// Cells of a segment.
  CellRange cells_of(const SegmentEntry& entry) const {
    const std::uint32_t all = num_cells();
    const std::uint32_t first = std::min<std::uint32_t>(entry.first_cell, all);
    return {first, first + std::min<std::uint32_t>(entry.num_cells, all - first)};
  }
  /// Label of a lane for messages; "?" if there is no such lane.
  std::string label_of(std::uint32_t i) const {
    return i < geometry_.max_lanes ? std::string(lane(i).label) : "?";
  }
  /// Label and process of a lane, which may have no label, for messages.
  std::string name_of(std::uint32_t i) const {
    const std::string label = label_of(i);
    const std::string pid = i < geometry_.max_lanes ? std::to_string(lane(i).pid) : "?";
    if (label.empty()) return "pid " + pid + ", lane " + std::to_string(i);
    return "'" + label + "' (pid " + pid + ")";
  }
  /// Name of a ring for messages; "?" if there is no such ring.
  std::string ring_name(std::uint32_t i) const {
    return i < geometry_.num_rings ? std::string(ring_header(i).name) : "?";
  }

 private:
  template <class T>
  T* at(std::uint64_t offset) const {
    return reinterpret_cast<T*>(mapping_.data() + offset);
  }
  std::uint64_t lay_out(const Geometry& geometry);

  os::Mapping mapping_;
  Geometry geometry_{};
  std::uint64_t lanes_ = 0, records_ = 0, segments_ = 0, words_ = 0, full_ = 0, cells_ = 0,
                rings_ = 0, slots_ = 0, streams_ = 0;
};

}  // namespace flowtrain::channel
