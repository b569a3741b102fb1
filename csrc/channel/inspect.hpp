#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "channel/control.hpp"
#include "channel/lanes.hpp"

namespace flowtrain::channel {

/// Slabs of one size.
struct ClassInfo {
  std::uint64_t slab_bytes;
  std::uint32_t slabs;
  std::uint32_t slabs_in_use;
};

/// What is told of a segment.
struct SegmentInfo {
  std::uint32_t id;
  std::string owner;
  std::uint64_t bytes;
  std::uint32_t slabs;
  std::uint32_t slabs_in_use;
  std::uint64_t bytes_in_use;
  std::vector<ClassInfo> classes;  ///< Smallest slabs first.
};

/// What is told of a ring.
struct RingInfo {
  std::string name;
  std::uint32_t items;  ///< Published and not yet taken.
  std::uint64_t bytes;
};

std::vector<SegmentInfo> segment_infos(const Control& control);
std::vector<RingInfo> ring_infos(const Control& control);

/// A look at a pool from outside: it takes no lane, and the pool's processes may all be dead.
///
/// Memory:   the control file, mapped.
/// Threads:  one at a time.
/// Progress: only reads; nobody waits for it.
/// Ordering: each word is read by itself, so sums of a pool in use are of about one moment.
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
