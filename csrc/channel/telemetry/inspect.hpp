#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "channel/layout/control.hpp"
#include "channel/liveness/lanes.hpp"

namespace flowtrain::channel {

/// Slabs of one size.
struct ClassInfo {
  std::uint64_t slab_bytes;
  std::uint32_t slabs;
  std::uint32_t slabs_in_use;
};

/// Public state of a segment.
struct SegmentInfo {
  std::uint32_t id;
  std::string owner;
  memory::Place place;
  std::uint64_t bytes;
  std::uint32_t slabs;
  std::uint32_t slabs_in_use;
  std::uint64_t bytes_in_use;
  std::uint64_t bytes_unused;      ///< Of those in use, the ones beyond leases and items.
  std::vector<ClassInfo> classes;  ///< Smallest slabs first.
};

/// Public state of a ring.
struct RingInfo {
  std::string name;
  std::uint32_t items;  ///< Published and not taken.
  std::uint64_t bytes;
};

std::vector<SegmentInfo> segment_infos(const Control& control);
std::vector<RingInfo> ring_infos(const Control& control);

/// Reads a pool from outside, without a lane. The pool's processes may all be dead.
///
/// Memory:   the control file, mapped.
/// Threads:  one at a time.
/// Progress: only reads; no participant waits for it.
/// Ordering: each word is read separately, so sums of a pool in use mix slightly different moments.
/// Errors:   PoolNotFound, PoolCorrupt.
class Observer {
 public:
  explicit Observer(const std::string& name);

  const std::string& name() const { return name_; }
  const Control& control() const { return control_; }
  const Lanes& lanes() const { return *lanes_; }

 private:
  std::string name_;
  os::Fd file_;
  Control control_;
  std::unique_ptr<Lanes> lanes_;
};

}  // namespace flowtrain::channel
