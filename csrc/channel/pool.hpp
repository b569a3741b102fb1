#pragma once

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "base/deadline.hpp"
#include "channel/control.hpp"
#include "channel/cutter.hpp"
#include "channel/lanes.hpp"
#include "channel/segments.hpp"
#include "os/fd.hpp"

namespace flowtrain::channel {

class Monitor;
class Pool;

/// A lane that this process holds; leaves it in its destructor.
class LaneHold {
 public:
  LaneHold(std::shared_ptr<Pool> pool, std::uint16_t lane) : pool_(std::move(pool)), lane_(lane) {}
  LaneHold(const LaneHold&) = delete;
  LaneHold& operator=(const LaneHold&) = delete;
  ~LaneHold();

  std::uint16_t number() const { return lane_; }
  Lane& operator*() const;

 private:
  std::shared_ptr<Pool> pool_;
  std::uint16_t lane_;
};

struct PoolOptions {
  std::string name;
  std::string label;
  std::vector<std::string> rings;
  std::uint32_t max_cells;
  std::uint32_t max_lanes;
};

/// One process's handle of a pool: control file, lanes and segments.
///
/// Memory:   control words in a file, data in sealed memfds that die with their holders.
/// Threads:  any; threads of its own watch lanes and map new segments, see Monitor.
/// Progress: joining and adding take a mutex; nothing waits without a deadline.
/// Ordering: as in Lanes, Segments and IndexRing.
/// Errors:   throws on the control path; after close every call throws PoolClosed.
class Pool : public std::enable_shared_from_this<Pool> {
 public:
  /// Null only where `interrupted` ended the wait for other makers.
  static std::shared_ptr<Pool> create(const PoolOptions& options,
                                      const Interrupted& interrupted = {});
  /// Null only where `interrupted` ended the wait.
  static std::shared_ptr<Pool> open(const std::string& name, const std::string& label,
                                    const Deadline& deadline, const Interrupted& interrupted = {});
  ~Pool();
  Pool(const Pool&) = delete;
  Pool& operator=(const Pool&) = delete;

  const std::string& name() const { return name_; }
  const std::string& label() const { return label_; }
  std::uint16_t lane() const { return lane_; }
  const Control& control() const { return control_; }
  Lanes& lanes() { return *lanes_; }
  Segments& segments() { return *segments_; }
  Cutter& cutter() { return *cutter_; }

  std::unique_ptr<LaneHold> join(LaneRole role, std::uint16_t ring);
  /// Returns the number of the new segment, or 0 if `interrupted` ended the wait.
  std::uint32_t add_segment(const memory::Carving& carving, bool prefault,
                            const Interrupted& interrupted = {});
  /// Gives a segment of this handle up: its memory goes with the last slab in use.
  void drop_segment(std::uint32_t number);
  std::uint32_t ring_number(const std::string& name) const;
  std::vector<std::string> ring_names() const;
  /// Slabs in use by the label of the lane that answers for them, for messages.
  std::string holders() const;

  /// Next pool handle found dead since this one joined; nothing when the wait ends.
  std::optional<LaneInfo> wait_dead(const Deadline& deadline);
  void report_dead(const LaneInfo& lane);

  /// Leaves the pool; its maker removes its name, unless another pool has it now. Items and leases
  /// that live stay readable.
  void close();
  bool closed() const { return closed_.load(std::memory_order_relaxed); }
  /// Throws PoolClosed after close, and in a forked child.
  void check_open() const;
  /// Throws PoolClosed in a forked child alone: what was taken before close stays usable.
  void check_not_forked() const;
  bool forked() const { return forked_.load(std::memory_order_relaxed); }
  /// In a forked child: drop what the parent's death must not find held.
  void abandon() noexcept;

 private:
  Pool(const PoolOptions& options, os::Fd folder, os::Fd file, Control control);
  void start();

  std::string name_;
  std::string label_;
  os::Fd folder_;  // Files are opened through it: another pool may get the name.
  bool creator_ = false;
  std::atomic<bool> closed_{false};
  std::atomic<bool> forked_{false};
  os::Fd file_;
  Control control_;
  std::unique_ptr<Lanes> lanes_;
  std::unique_ptr<Segments> segments_;
  std::unique_ptr<Cutter> cutter_;
  std::uint16_t lane_ = 0;
  bool joined_ = false;  // The lane is held; not so where start threw before.
  std::unique_ptr<Monitor> monitor_;
  std::mutex dead_mutex_;
  std::condition_variable dead_changed_;
  std::deque<LaneInfo> dead_;
};

/// A pool of this user, by its folder.
struct PoolEntry {
  std::string name;
  std::int32_t creator_pid;  ///< 0 where its maker never finished it, or was of another version.
  bool alive;                ///< Some process holds a lane of it.
};
std::vector<PoolEntry> list_pools();
/// Whether a pool of this name can be opened.
bool pool_exists(const std::string& name);
/// Removes a pool's name; false if there was none, or where `interrupted` ended the wait for those
/// who make pools. Those who have it open keep it.
///
/// @param only_left  Leave it, and say false, where somebody has it open or is making it.
bool unlink_pool(const std::string& name, bool only_left = false,
                 const Interrupted& interrupted = {});

}  // namespace flowtrain::channel
