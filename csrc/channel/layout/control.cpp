#include "channel/layout/control.hpp"

#include <bit>

#include "base/error.hpp"
#include "os/folder.hpp"

namespace flowtrain::channel {
namespace {

/// Whether the stored indices can address tables of these sizes.
bool is_sound(const Geometry& geometry) {
  return geometry.max_lanes >= 1 && geometry.max_lanes <= UINT16_MAX && geometry.max_cells >= 1 &&
         geometry.max_cells <= lockfree::kMaxCells && geometry.num_rings >= 1 &&
         geometry.num_rings <= UINT16_MAX && std::has_single_bit(geometry.ring_capacity) &&
         geometry.ring_capacity >= geometry.max_cells &&
         geometry.ring_capacity <= lockfree::kMaxCells;
}

}  // namespace

std::uint64_t Control::lay_out(const Geometry& geometry) {
  geometry_ = geometry;
  std::uint64_t end = 0;
  const auto place = [&end](std::uint64_t size, std::uint64_t count) {
    const std::uint64_t start = end;
    end = round_up(start + size * count, kCacheLine);
    return start;
  };
  place(sizeof(Header), 1);
  lanes_ = place(sizeof(Lane), geometry.max_lanes);
  records_ = place(sizeof(LaneRecord), geometry.max_lanes);
  segments_ = place(sizeof(SegmentEntry), kMaxSegments);
  // FreeMap reads whole groups: the table ends on a cache line.
  words_ = place(sizeof(lockfree::AtomicCell), geometry.max_cells);
  full_ = place(sizeof(lockfree::FreeMap::Bits), lockfree::FreeMap::bits_for(geometry.max_cells));
  cells_ = place(sizeof(Cell), geometry.max_cells);
  rings_ = place(sizeof(RingHeader), geometry.num_rings);
  slots_ = place(sizeof(lockfree::AtomicSlot),
                 std::uint64_t{geometry.num_rings} * geometry.ring_capacity);
  end = round_up(end, kPageBytes);
  streams_ = place(memory::StreamPage::bytes_for(1), geometry.max_cells);
  return round_up(end, kPageBytes);
}

std::uint64_t Control::file_bytes(const Geometry& geometry) { return Control().lay_out(geometry); }

Control Control::make(const os::Fd& file, const std::string& path, const Geometry& geometry) {
  Control control;
  control.mapping_ = os::Mapping(os::reopen_file(file), control.lay_out(geometry), path);
  Header& header = control.header();
  header.magic = kMagic;
  header.version = kLayoutVersion;
  header.geometry = geometry;
  return control;
}

std::optional<Control> Control::find(const os::Fd& file, const std::string& path) {
  const std::uint64_t bytes = os::file_bytes(file);
  if (bytes < sizeof(Header)) return std::nullopt;
  Control control;
  control.mapping_ = os::Mapping(os::reopen_file(file), bytes, path);
  const Header& header = control.header();
  const std::uint64_t magic = header.magic;
  const std::uint32_t version = header.version;
  if (magic == 0 || version == 0) return std::nullopt;
  if (magic != kMagic) throw PoolCorrupt(path + ": not a pool's control file; remove it");
  if (version != kLayoutVersion) {
    throw PoolCorrupt(path + ": layout version " + std::to_string(version) + ", this is " +
                      std::to_string(kLayoutVersion) + "; use one version of flowtrain_core");
  }
  const Admission admission =
      header.admission.load(std::memory_order_acquire);  // sync: control.admission
  if (admission == Admission::kNotReady) return std::nullopt;
  const Geometry geometry = copy_once(header.geometry);
  if (!is_sound(geometry)) {
    throw PoolCorrupt(path + ": impossible sizes (" + std::to_string(geometry.max_lanes) +
                      " lanes, " + std::to_string(geometry.max_cells) + " cells, " +
                      std::to_string(geometry.num_rings) + " rings of " +
                      std::to_string(geometry.ring_capacity) + " slots); Pool.unlink it");
  }
  const std::uint64_t needed = control.lay_out(geometry);
  if (needed > bytes) {
    throw PoolCorrupt(path + ": " + std::to_string(bytes) + " bytes, its tables need " +
                      std::to_string(needed) + "; Pool.unlink it");
  }
  return control;
}

}  // namespace flowtrain::channel
