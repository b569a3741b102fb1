#pragma once

#include <array>
#include <cstdint>
#include <mutex>
#include <string>
#include <vector>

#include "channel/layout/control.hpp"
#include "os/fd.hpp"

namespace flowtrain::channel {

/// Public state of a lane.
struct LaneInfo {
  std::uint32_t index;
  std::string label;
  LaneRole role;
  std::int32_t pid;
  LaneState state;
  std::uint32_t generation;
  std::uint16_t ring;  ///< Number of the ring, for a producer or consumer.
};

/// Locks over all processes of a pool, which the kernel frees when their holder dies.
/// kRecovery: reclaim what dead lanes hold. kAssignment: assign cells to a segment, or slabs to
/// cells.
enum class PoolLock : std::uint32_t { kRecovery, kAssignment };

/// The participants of a pool as one handle sees them, including those of this process.
///
/// Memory:   the lanes of the control file, and byte locks on it: one byte for each lane, and after
///           these one for each PoolLock, and the one that all handles share, see
///           os::RemovalOnSignal.
/// Threads:  any; join and leave exclude each other within the handle.
/// Progress: no call waits for another process.
/// Ordering: lane.state publishes the fields of a lane.
/// Errors:   PoolSpace if all lanes are in use; SystemCallError if the file cannot be locked.
class Lanes {
 public:
  Lanes(const Control& control, const os::Fd& file)
      : control_(control), file_(file), held_(control.geometry().max_lanes, false) {}

  /// Returns the number of the new participant's lane.
  std::uint16_t join(LaneRole role, std::uint16_t ring, const std::string& label,
                     const std::string& pool);
  /// A lane that stands for a process of another host, as a pool handle that maps no memory.
  ///
  /// @param pid  Of the process, there.
  std::uint16_t join_guest(const std::string& label, std::int32_t pid, const std::string& pool);
  /// Ends a participant cleanly. Its lane stays visible until it is reused.
  void leave(std::uint16_t lane) noexcept;
  /// Ends a guest as the death of its process would: all handles find it dead.
  void die(std::uint16_t guest) noexcept;

  std::uint32_t size() const { return control_.geometry().max_lanes; }
  std::uint64_t shared_byte() const { return size() + locks_.size(); }
  /// Whether a lane is of this handle.
  bool holds(std::uint32_t lane) const;
  /// Whether the process of a lane lives, by its byte lock; false if there is no such lane.
  bool is_alive(std::uint32_t lane) const noexcept;
  /// Whether the process of a lane died and recovery has not begun.
  bool has_died(std::uint32_t lane) const noexcept;
  LaneInfo info(std::uint32_t lane) const;
  /// Every lane that was ever used.
  std::vector<LaneInfo> all() const;

  bool try_lock(PoolLock lock) noexcept;
  void unlock(PoolLock lock) noexcept;

 private:
  std::uint16_t join(LaneRole role, std::uint16_t ring, const std::string& label, std::int32_t pid,
                     bool is_guest, const std::string& pool);
  bool is_reusable(std::uint32_t lane) const;

  const Control& control_;
  const os::Fd& file_;
  mutable std::mutex mutex_;
  std::vector<bool> held_;
  std::array<bool, 2> locks_{};  // Held by this handle; a byte lock does not exclude its holder.
};

}  // namespace flowtrain::channel
