#pragma once

#include <cstdint>
#include <vector>

#include "channel/liveness/lanes.hpp"
#include "channel/liveness/reaper.hpp"
#include "channel/liveness/stream_work.hpp"

namespace flowtrain::channel {

/// Finds the lanes whose process died, and reclaims what they held. PoolLock::kRecovery admits one
/// handle at a time.
///
/// Memory:   the pool's control tables.
/// Threads:  one, that of its handle's monitor.
/// Progress: never waits. Lanes that another handle is recovering, or whose cells a living lane is
///           moving, are left for a later call. A lane with slabs or stream work in device memory
///           is left until its process has ended, since a process that only lost its lock still
///           runs, and streams cannot be stopped. Only handles in its PID namespace can see that
///           end. An interrupted recovery is repeated.
/// Ordering: lane.state, as in Lanes.
/// Errors:   never throws, except for lack of memory of its own.
template <class Rules = ReapRules>
class Recovery {
 public:
  /// @param own_lane  Lane under which items are redelivered.
  Recovery(const Control& control, Lanes& lanes, std::uint16_t own_lane)
      : control_(control), lanes_(lanes), own_lane_(own_lane) {}

  /// @param drain  Called with the dead lane of a pool handle, before its cells are reclaimed.
  /// @return  Whether no lane is left to recover, but those that wait for the end of a process.
  template <class Drain>
  bool reclaim_dead(Drain&& drain) {
    std::vector<std::uint16_t> dead;
    for (std::uint32_t i = 0; i < lanes_.size(); ++i) {
      if (needs_recovery(i)) dead.push_back(static_cast<std::uint16_t>(i));
    }
    if (dead.empty()) return true;
    if (!lanes_.try_lock(PoolLock::kRecovery)) return false;
    bool done = true;
    for (const std::uint16_t lane : dead) done &= reclaim(lane, drain);
    lanes_.unlock(PoolLock::kRecovery);
    return done;
  }

 private:
  bool needs_recovery(std::uint32_t i) const {
    return lanes_.has_died(i) ||
           control_.lane(i).state.load(std::memory_order_acquire) ==  // sync: lane.state
               LaneState::kDying;
  }

  template <class Drain>
  bool reclaim(std::uint16_t number, Drain& drain) {
    // Before this handle got the lock, the lane may have left, or another handle recovered it.
    if (!needs_recovery(number)) return true;
    Lane& lane = control_.lane(number);
    std::atomic<std::uint32_t>& version = control_.header().lanes_version;
    lane.retired = version.load(std::memory_order_relaxed);
    lane.state.store(LaneState::kDying, std::memory_order_release);  // sync: lane.state
    version.fetch_add(1, std::memory_order_release);                 // sync: control.lanes
    if (lane.role == LaneRole::kPool) drain(number);
    const StreamWork streams(control_, number);
    if (streams.any()) {
      if (!os::has_ended(lane.pid, lane.process)) return true;
      if (!streams.settle()) return false;
    }
    const auto alive = [this](std::uint16_t other) { return lanes_.is_alive(other); };
    if (!reap<Rules>(control_, number, own_lane_, alive)) return false;
    lane.state.store(LaneState::kDead, std::memory_order_release);  // sync: lane.state
    version.fetch_add(1, std::memory_order_release);                // sync: control.lanes
    return true;
  }

  const Control& control_;
  Lanes& lanes_;
  std::uint16_t own_lane_;
};

}  // namespace flowtrain::channel
