#pragma once

#include <cstdint>
#include <vector>

#include "channel/lanes.hpp"
#include "channel/reaper.hpp"

namespace flowtrain::channel {

/// Buries the lanes whose process died, under the right that one handle at a time has.
///
/// Memory:   the pool's control tables.
/// Threads:  one, that of its handle's monitor.
/// Progress: never waits; what another handle is burying, or somebody is moving, is left for a
///           later call. A burial that ended half-way is done again.
/// Ordering: lane.state, as in Lanes.
/// Errors:   never throws but for lack of memory of its own.
template <class Rules = ReapRules>
class Undertaker {
 public:
  /// @param mine  Lane under which items are delivered again.
  Undertaker(const Control& control, Lanes& lanes, std::uint16_t mine)
      : control_(control), lanes_(lanes), mine_(mine) {}

  /// @param drain  Called with a dead lane of a pool handle, before it is reaped.
  /// @return  Whether nobody is left to bury.
  template <class Drain>
  bool bury_the_dead(Drain&& drain) {
    std::vector<std::uint16_t> dead;
    for (std::uint32_t i = 0; i < lanes_.size(); ++i) {
      if (needs_burial(i)) dead.push_back(static_cast<std::uint16_t>(i));
    }
    if (dead.empty()) return true;
    if (!lanes_.try_take(Lanes::Right::kReap)) return false;
    bool done = true;
    for (const std::uint16_t lane : dead) done &= bury(lane, drain);
    lanes_.give_back(Lanes::Right::kReap);
    return done;
  }

 private:
  bool needs_burial(std::uint32_t i) const {
    return lanes_.is_lost(i) ||
           control_.lane(i).state.load(std::memory_order_acquire) ==  // sync: lane.state
               LaneState::kDying;
  }

  template <class Drain>
  bool bury(std::uint16_t number, Drain& drain) {
    // It may have left cleanly, or been buried by another handle, before the right was ours.
    if (!needs_burial(number)) return true;
    Lane& lane = control_.lane(number);
    std::atomic<std::uint32_t>& version = control_.header().lanes_version;
    lane.retired = version.load(std::memory_order_relaxed);
    lane.state.store(LaneState::kDying, std::memory_order_release);  // sync: lane.state
    version.fetch_add(1, std::memory_order_release);                 // sync: control.lanes
    if (lane.role == LaneRole::kPool) drain(number);
    const auto alive = [this](std::uint16_t other) { return lanes_.is_alive(other); };
    if (!reap<Rules>(control_, number, mine_, alive)) return false;
    lane.state.store(LaneState::kDead, std::memory_order_release);  // sync: lane.state
    version.fetch_add(1, std::memory_order_release);                // sync: control.lanes
    return true;
  }

  const Control& control_;
  Lanes& lanes_;
  std::uint16_t mine_;
};

}  // namespace flowtrain::channel
