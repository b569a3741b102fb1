#include "channel/control.hpp"

#include "base/error.hpp"
#include "os/folder.hpp"

namespace flowtrain::channel {

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
  words_ = place(sizeof(lockfree::AtomicCell), geometry.max_cells);
  cells_ = place(sizeof(Cell), geometry.max_cells);
  rings_ = place(sizeof(RingHeader), geometry.num_rings);
  slots_ = place(sizeof(lockfree::AtomicSlot),
                 std::uint64_t{geometry.num_rings} * geometry.ring_capacity);
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
  if (header.ready.load(std::memory_order_acquire) != 1)
    return std::nullopt;  // sync: control.ready
  if (header.magic != kMagic || header.version != kLayoutVersion) {
    throw PoolCorrupt(path + ": layout version " + std::to_string(header.version) + ", this is " +
                      std::to_string(kLayoutVersion) + "; use one version of flowtrain_core");
  }
  if (control.lay_out(header.geometry) > bytes) {
    throw PoolCorrupt(path + ": " + std::to_string(bytes) + " bytes, its tables need " +
                      std::to_string(control.lay_out(header.geometry)) + "; Pool.unlink it");
  }
  return control;
}

}  // namespace flowtrain::channel
