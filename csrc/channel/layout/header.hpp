#pragma once

#include <atomic>
#include <cstdint>

#include "base/relaxed.hpp"
#include "os/event.hpp"

namespace flowtrain::channel {

inline constexpr std::uint64_t kMagic = 0x315f4c4f4f505446;  // "FTPOOL_1"
inline constexpr std::uint32_t kLayoutVersion = 14;

/// Sizes of a pool, fixed when it is created.
struct Geometry {
  std::uint32_t max_lanes;
  std::uint32_t max_cells;
  std::uint32_t num_rings;
  std::uint32_t ring_capacity;  ///< Power of two, at least max_cells: a push never waits.
};

/// Whether other processes may open a pool. kClosing: its creator is closing it.
enum class Admission : std::uint32_t { kNotReady, kOpen, kClosing };

/// First bytes of the control file. Magic and version have the same place in every version, so that
/// a pool of another version is told from a damaged file.
struct Header {
  Relaxed<std::uint64_t> magic;
  Relaxed<std::uint32_t> version;
  std::atomic<Admission> admission;
  Geometry geometry;
  std::int32_t creator_pid;
  std::uint64_t nonce;
  std::atomic<std::uint32_t> num_cells;     ///< End of the cells that any segment has had.
  std::atomic<std::uint32_t> num_segments;  ///< End of the entries that were ever used.
  std::atomic<std::uint32_t> lanes_version;
  std::atomic<std::uint32_t> segments_version;
  os::Event space;  ///< A cell was freed, or a segment added.
};

}  // namespace flowtrain::channel
