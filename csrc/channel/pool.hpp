#pragma once

#include <array>
#include <atomic>
#include <condition_variable>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "base/deadline.hpp"
#include "channel/control.hpp"
#include "memory/carve.hpp"
#include "os/fd.hpp"
#include "os/fd_socket.hpp"
#include "os/mapping.hpp"

namespace flowtrain::channel {

class Monitor;
class Pool;

/// Asked now and then during a wait; true ends the wait early, without a result.
using Interrupted = std::function<bool()>;

/// A lane that this process holds; gives it back, marked as left, in its destructor.
class LaneHold {
 public:
  LaneHold(std::shared_ptr<Pool> pool, std::uint16_t lane) : pool_(std::move(pool)), lane_(lane) {}
  LaneHold(const LaneHold&) = delete;
  LaneHold& operator=(const LaneHold&) = delete;
  ~LaneHold();

  std::uint16_t number() const { return lane_; }
  Lane& operator*() const;
  Lane* operator->() const { return &**this; }

 private:
  std::shared_ptr<Pool> pool_;
  std::uint16_t lane_;
};

/// What `lanes()` tells of a lane.
struct LaneInfo {
  std::uint32_t index;
  std::string label;
  LaneRole role;
  std::int32_t pid;
  LaneState state;
};

/// What `stats()` tells of a segment.
struct SegmentInfo {
  std::uint32_t id;
  std::string owner;
  std::uint64_t bytes;
  std::uint32_t slabs;
  std::uint32_t slabs_in_use;
  std::uint64_t bytes_in_use;
};

struct PoolOptions {
  std::string name;
  std::string label;
  std::vector<std::string> rings;
  std::uint32_t max_cells;
  std::uint32_t max_lanes;
};

/// One process's handle of a pool: control file, lanes, and the mappings of all segments.
///
/// Memory:   control words in a file, data in sealed memfds that die with their holders.
/// Threads:  any; a monitor thread of its own watches lanes and maps new segments, and a socket
///           thread serves the memory of this handle's segments.
/// Progress: resolve is wait-free once a segment is mapped; joining and adding take a mutex.
/// Ordering: segment.state publishes a segment's entry; lane.state a lane's.
/// Errors:   throws on the control path; after close every call throws PoolClosed.
class Pool : public std::enable_shared_from_this<Pool> {
 public:
  static std::shared_ptr<Pool> create(const PoolOptions& options);
  static std::shared_ptr<Pool> open(const std::string& name, const std::string& label,
                                    double timeout_s);
  ~Pool();

  const std::string& name() const { return name_; }
  const std::string& label() const { return label_; }
  const Control& control() const { return control_; }
  const os::Fd& file() const { return file_; }
  std::uint16_t lane() const;
  bool creator() const { return creator_; }

  /// Takes a free lane.
  std::unique_ptr<LaneHold> join(LaneRole role);
  void leave(std::uint16_t lane) noexcept;
  bool holds(std::uint16_t lane) const;

  /// Adds a segment that this handle owns; its number.
  std::uint32_t add_segment(const memory::Carving& carving, bool prefault);

  /// Memory of an address, or null where it is stale, out of bounds, or its holder is gone.
  std::byte* resolve(memory::Address address, std::uint64_t bytes);
  /// Maps every segment that can be mapped; called by the monitor, so that a segment outlives
  /// its holder wherever the pool is open.
  void map_segments() noexcept;

  std::uint32_t ring_number(const std::string& name) const;
  std::vector<std::string> ring_names() const;
  std::vector<LaneInfo> lanes() const;
  LaneInfo lane_info(std::uint32_t lane) const;
  std::vector<SegmentInfo> segments() const;
  /// Slabs in use by the label of the lane that answers for them, for messages.
  std::string holders() const;

  /// Next pool handle found dead since this one joined, or nothing.
  std::optional<LaneInfo> wait_dead(const Deadline& deadline);
  void report_dead(const LaneInfo& lane);

  /// Marks the segments of a pool handle's lane as dead: nothing is allocated in them again,
  /// and what was published in them stays readable wherever they are mapped.
  void retire_segments(std::uint16_t owner) noexcept;
  /// Gives a cell back: credits, word, waiters.
  void free_cell(std::uint32_t cell) noexcept;

  void close();
  bool closed() const { return closed_.load(std::memory_order_relaxed); }
  /// Throws PoolClosed after close, and in a forked child.
  void check_open() const;
  /// In a forked child: drop what the parent's death must not find held.
  void abandon() noexcept;

 private:
  Pool(std::string name, std::string label);
  void start();
  std::uint16_t take_lane(LaneRole role);
  bool map_segment(std::uint32_t index);
  bool is_reusable(std::uint32_t lane) const;

  std::string name_;
  std::string label_;
  std::string folder_;
  bool creator_ = false;
  std::atomic<bool> closed_{false};
  std::atomic<bool> forked_{false};
  os::Fd file_;
  Control control_;
  mutable std::mutex lanes_mutex_;
  std::vector<bool> held_;
  std::uint16_t own_lane_ = 0;
  std::mutex segments_mutex_;
  std::array<std::atomic<std::byte*>, kMaxSegments> bases_{};
  std::array<os::Mapping, kMaxSegments> mappings_;
  std::array<os::Fd, kMaxSegments> fds_;
  std::unique_ptr<os::FdServer> server_;
  std::unique_ptr<Monitor> monitor_;
  std::mutex dead_mutex_;
  std::condition_variable dead_changed_;
  std::deque<LaneInfo> dead_;
};

/// Whether a pool of this name can be opened: its folder exists and its creator lives.
struct PoolEntry {
  std::string name;
  std::int32_t creator_pid;
  bool alive;  ///< Some process holds a lane of it.
};
std::vector<PoolEntry> list_pools();

/// Closes every pool of this process: at exit, so that a clean end is not taken for a death.
void close_all_pools();

}  // namespace flowtrain::channel
