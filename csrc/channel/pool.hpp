#pragma once

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "base/deadline.hpp"
#include "channel/layout/control.hpp"
#include "channel/liveness/lanes.hpp"
#include "channel/segments/segments.hpp"
#include "memory/carve.hpp"
#include "os/fd.hpp"
#include "os/removal_on_signal.hpp"

namespace flowtrain::channel {

class Monitor;
class Pool;

/// Holds a lane of this process, and leaves it in its destructor.
class LaneHold {
 public:
  LaneHold(std::shared_ptr<Pool> pool, std::uint16_t lane, std::mutex* publishing)
      : pool_(std::move(pool)), lane_(lane), publishing_(publishing) {}
  LaneHold(const LaneHold&) = delete;
  LaneHold& operator=(const LaneHold&) = delete;
  ~LaneHold();

  std::uint16_t number() const { return lane_; }
  Lane& operator*() const;

 private:
  std::shared_ptr<Pool> pool_;
  std::uint16_t lane_;
  std::mutex* publishing_;
};

struct PoolOptions {
  std::string name;
  std::string label;
  std::vector<std::string> rings;
  std::uint32_t max_cells;
  std::uint32_t max_lanes;
  memory::Resources resources = memory::host_resources();
};

/// A segment to be added.
struct SegmentOptions {
  memory::Carving carving;
  bool prefault = true;
  memory::Place place = {};
};

/// One process's handle of a pool: control file, lanes and segments.
///
/// Memory:   control words in a file, data in sealed memfds that die with their holders.
/// Threads:  any; threads of its own detect deaths and map new segments, see Monitor.
/// Progress: join and add_segment take a mutex; every wait has a deadline.
/// Ordering: as in Lanes, Segments and IndexRing.
/// Errors:   throws on the control path; after close every call throws PoolClosed.
class Pool : public std::enable_shared_from_this<Pool> {
 public:
  /// Deletes a handle whose last reference is gone.
  using Deleter = void (*)(Pool* pool);
  static void destroy(Pool* pool) { delete pool; }

  /// Null only if `interrupted` ended the wait for other processes that create pools, or the
  /// prefault: nothing is left of the pool then.
  ///
  /// @param first  First segment. Others can open the pool, and wait for this memory, while it is
  ///               being made.
  static std::shared_ptr<Pool> create(const PoolOptions& options,
                                      const std::optional<SegmentOptions>& first = {},
                                      const Interrupted& interrupted = {},
                                      Deleter deleter = &destroy);
  /// Null only if `interrupted` ended the wait.
  static std::shared_ptr<Pool> open(const std::string& name, const std::string& label,
                                    const Deadline& deadline, const Interrupted& interrupted = {},
                                    Deleter deleter = &destroy,
                                    const memory::Resources& resources = memory::host_resources());
  ~Pool();
  Pool(const Pool&) = delete;
  Pool& operator=(const Pool&) = delete;

  const std::string& name() const { return name_; }
  const std::string& label() const { return label_; }
  std::uint16_t lane() const { return lane_; }
  const Control& control() const { return control_; }
  /// After close, waits until the stream has finished what was just enqueued: a closed pool may
  /// unmap the slab.
  void wait_if_closed(const memory::StreamSteps& steps, memory::StreamHandle stream) const;
  /// Ends the lanes that only stream work kept open, if that work is done.
  void leave_idle();
  Lanes& lanes() { return *lanes_; }
  Segments& segments() { return *segments_; }

  /// @param publishing  Mutex of a producer, which checks under it that the pool is open, and then
  ///                    publishes. Outlives the result.
  std::unique_ptr<LaneHold> join(LaneRole role, std::uint16_t ring,
                                 std::mutex* publishing = nullptr);
  /// Returns the number of the new segment, or 0 if `interrupted` ended the wait or the prefault.
  std::uint32_t add_segment(const memory::Carving& carving, bool prefault,
                            const Interrupted& interrupted = {}, const memory::Place& place = {});
  /// Ends leasing from a segment of this handle. Its memory is freed once no slab is in use.
  void drop_segment(std::uint32_t number);
  std::uint16_t ring_number(const std::string& name) const;
  std::vector<std::string> ring_names() const;
  /// The lanes that hold slabs, by label if they have one, with the number of slabs by state; for
  /// messages.
  std::string holders() const;

  /// Waits for the next pool handle that dies; nothing at the deadline. Deaths before this handle
  /// joined do not count.
  std::optional<LaneInfo> wait_dead(const Deadline& deadline);
  void report_dead(const LaneInfo& lane);

  /// Leaves the pool, once other living handles have mapped what must stay readable (see Handover),
  /// or after kHandoverS, or when `interrupted` ends this wait. The handle that created the pool
  /// also removes the pool's name, unless another pool has this name by now; a signal that ends its
  /// process does this, too, see os::remove_pools_on_signals. Existing items and leases stay
  /// readable. An item is published before this wait begins, or not at all.
  ///
  /// Before that it waits until the streams of this process have done what was enqueued for slabs
  /// in memory of devices.
  ///
  /// Errors: PoolTimeout, after the handle is closed, if items may be lost with it, or if streams
  ///         are not done within kHandoverS: what they use then stays mapped until the process
  ///         ends.
  void close(const Interrupted& interrupted = {});
  bool closed() const { return closed_.load(std::memory_order_relaxed); }
  /// Throws PoolClosed after close, and in a forked child.
  void check_open() const;
  /// Throws PoolClosed only in a forked child: existing items and leases stay usable after close.
  void check_not_forked() const;
  bool forked() const { return forked_.load(std::memory_order_relaxed); }
  /// In a forked child: closes the files whose locks are the parent's.
  void abandon() noexcept;

 private:
  friend class LaneHold;

  /// Ends a lane of this handle, or leaves that to a later call if its streams have work.
  void leave(std::uint16_t lane);
  bool try_leave(std::uint16_t lane);
  /// Leaves the words mapped and registered until the process ends.
  void keep_for_streams();
  bool streams_pending() const;
  Pool(const PoolOptions& options, os::Fd folder, os::Fd file, Control control);
  static std::shared_ptr<Pool> create_unfilled(const PoolOptions& options,
                                               const std::optional<SegmentOptions>& first,
                                               std::optional<Segments::Claim>& claim,
                                               const Interrupted& interrupted, Deleter deleter);
  void remove_on_signal();
  void start();
  void end_publishing();
  std::string hand_over(const Interrupted& interrupted);

  static constexpr double kHandoverS = 10.0;  ///< Living handles need a few milliseconds.

  std::string name_;
  std::string label_;
  os::Fd folder_;  // Opens files by it, because another pool may get the name.
  bool creator_ = false;
  std::optional<os::RemovalOnSignal> removal_;
  std::atomic<bool> closed_{false};
  std::atomic<bool> forked_{false};
  os::Fd file_;
  Control control_;
  std::unique_ptr<Lanes> lanes_;
  std::unique_ptr<Segments> segments_;
  std::uint16_t lane_ = 0;
  bool joined_ = false;  // Whether the lane is held; start may throw before.
  std::unique_ptr<Monitor> monitor_;
  std::mutex publishers_mutex_;
  std::set<std::mutex*> publishers_;  // Under publishers_mutex_; of the producers of this handle.
  std::mutex leaving_mutex_;
  std::set<std::uint16_t> leaving_;  // Under leaving_mutex_.
  std::mutex dead_mutex_;
  std::condition_variable dead_changed_;
  std::unique_ptr<std::deque<LaneInfo>> dead_ = std::make_unique<std::deque<LaneInfo>>();
};

}  // namespace flowtrain::channel
