#include "channel/liveness/lanes.hpp"

#include <unistd.h>

#include <algorithm>

#include "base/error.hpp"
#include "os/byte_lock.hpp"

namespace flowtrain::channel {

bool Lanes::is_reusable(std::uint32_t lane) const {
  switch (control_.lane(lane).state.load(std::memory_order_acquire)) {  // sync: lane.state
    case LaneState::kFree: return true;
    case LaneState::kAlive:
    case LaneState::kDying: return false;
    case LaneState::kLeft:
    case LaneState::kDead: break;
  }
  // The reader of an item still looks up its producer, and a reaper its publisher.
  for (std::uint32_t c = 0; c < control_.num_cells(); ++c) {
    const auto word = control_.word(c).load(std::memory_order_acquire);  // sync: cell.word
    if (lockfree::state_of(word) == lockfree::CellState::kFree) continue;
    if (control_.cell(c).producer == lane || lockfree::owner_of(word) == lane) return false;
  }
  // A reader that lacks the memory of a segment asks whether the owner's lane is alive.
  for (std::uint32_t i = 0; i < kMaxSegments; ++i) {
    const auto word =
        control_.segment(i).word.load(std::memory_order_acquire);  // sync: segment.word
    if (has_cells(word) && owner_of(word) == lane) return false;
  }
  return true;
}

std::uint16_t Lanes::join(LaneRole role, std::uint16_t ring, const std::string& label,
                          const std::string& pool) {
  return join(role, ring, label, ::getpid(), false, pool);
}

std::uint16_t Lanes::join_guest(const std::string& label, std::int32_t pid,
                                const std::string& pool) {
  return join(LaneRole::kPool, 0, label, pid, true, pool);
}

std::uint16_t Lanes::join(LaneRole role, std::uint16_t ring, const std::string& label,
                          std::int32_t pid, bool is_guest, const std::string& pool) {
  const std::lock_guard lock(mutex_);
  const std::uint32_t version = control_.header().lanes_version.load(std::memory_order_relaxed);
  // Unused lanes first, then the one that ended first, so that recent ends stay readable.
  std::vector<std::pair<std::uint32_t, std::uint32_t>> order;
  for (std::uint32_t i = 0; i < size(); ++i) {
    if (!is_reusable(i)) continue;
    const Lane& lane = control_.lane(i);
    const bool fresh = lane.generation.load(std::memory_order_relaxed) == 0;
    order.emplace_back(fresh ? 0 : UINT32_MAX - (version - lane.retired), i);
  }
  std::sort(order.begin(), order.end());
  for (const auto& [age, i] : order) {
    const os::Locked locked = os::try_lock_byte(file_, i);
    if (locked == os::Locked::kFailed) {
      throw_errno("pool '" + pool +
                  "': the control file cannot be locked (F_OFD_SETLK), by which " +
                  "other processes see that this one lives; is this a sandbox without such locks?");
    }
    if (locked == os::Locked::kHeld) continue;
    if (!is_reusable(i)) {  // Another process has used it meanwhile.
      os::unlock_byte(file_, i);
      continue;
    }
    held_[i] = true;
    Lane& lane = control_.lane(i);
    lane.state.store(LaneState::kFree, std::memory_order_relaxed);
    lane.generation.fetch_add(1, std::memory_order_release);  // sync: lane.generation
    // Orders the stores below after the generation: pairs with the fence in info.
    std::atomic_thread_fence(std::memory_order_release);
    lane.role = role;
    lane.ring = ring;
    // Nobody waits until a guest has mapped a segment.
    lane.leaving.store(is_guest, std::memory_order_relaxed);
    lane.pid = pid;
    if (is_guest) {
      lane.process.started = 0;
      lane.process.space = 0;
    } else {
      os::write_own_age(lane.process);
    }
    lane.label = label;
    for (auto& generation : lane.mapped) generation.store(0, std::memory_order_relaxed);
    lane.state.store(LaneState::kAlive, std::memory_order_release);           // sync: lane.state
    control_.header().lanes_version.fetch_add(1, std::memory_order_release);  // sync: control.lanes
    return static_cast<std::uint16_t>(i);
  }
  throw PoolSpace("pool '" + pool + "': all " + std::to_string(size()) +
                  " lanes are taken; raise max_lanes, or close unused handles");
}

void Lanes::leave(std::uint16_t number) noexcept {
  const std::lock_guard lock(mutex_);
  Lane& lane = control_.lane(number);
  lane.retired = control_.header().lanes_version.load(std::memory_order_relaxed);
  lane.state.store(LaneState::kLeft, std::memory_order_release);  // sync: lane.state
  held_[number] = false;
  os::unlock_byte(file_, number);
  control_.header().lanes_version.fetch_add(1, std::memory_order_release);  // sync: control.lanes
}

void Lanes::die(std::uint16_t guest) noexcept {
  const std::lock_guard lock(mutex_);
  // At once: until a reaper comes by, it would look like a rank of this host.
  control_.lane(guest).state.store(LaneState::kDying,
                                   std::memory_order_release);  // sync: lane.state
  held_[guest] = false;
  os::unlock_byte(file_, guest);
  control_.header().lanes_version.fetch_add(1, std::memory_order_release);  // sync: control.lanes
}

bool Lanes::holds(std::uint32_t lane) const {
  const std::lock_guard lock(mutex_);
  return lane < held_.size() && held_[lane];
}

bool Lanes::is_alive(std::uint32_t lane) const noexcept {
  return lane < size() &&
         control_.lane(lane).state.load(std::memory_order_acquire) ==  // sync: lane.state
             LaneState::kAlive &&
         (holds(lane) || os::is_byte_locked(file_, lane));
}

bool Lanes::has_died(std::uint32_t i) const noexcept {
  const Lane& lane = control_.lane(i);
  const auto generation = lane.generation.load(std::memory_order_acquire);  // sync: lane.generation
  const auto alive = [&lane] {
    return lane.state.load(std::memory_order_acquire) == LaneState::kAlive;  // sync: lane.state
  };
  // A leaving lane stores its state before it unlocks; a joining one locks before it stores its
  // state. So only a death passes both checks, not a lane that was left and joined in between.
  return alive() && !holds(i) && !os::is_byte_locked(file_, i) && alive() &&
         lane.generation.load(std::memory_order_relaxed) == generation;
}

LaneInfo Lanes::info(std::uint32_t i) const {
  const Lane& lane = control_.lane(i);
  for (;;) {
    const auto generation =
        lane.generation.load(std::memory_order_acquire);                 // sync: lane.generation
    const LaneState state = lane.state.load(std::memory_order_acquire);  // sync: lane.state
    LaneInfo info{i, lane.label, lane.role, lane.pid, state, generation, lane.ring};
    std::atomic_thread_fence(std::memory_order_acquire);
    // If it was reused in between, the fields may be of both lives.
    if (generation == lane.generation.load(std::memory_order_relaxed)) return info;
  }
}

std::vector<LaneInfo> Lanes::all() const {
  std::vector<LaneInfo> infos;
  for (std::uint32_t i = 0; i < size(); ++i) {
    LaneInfo lane = info(i);
    if (lane.state != LaneState::kFree) infos.push_back(std::move(lane));
  }
  return infos;
}

bool Lanes::try_lock(PoolLock lock) noexcept {
  const auto number = static_cast<std::uint32_t>(lock);
  const std::lock_guard guard(mutex_);
  if (locks_[number]) return false;
  if (os::try_lock_byte(file_, size() + number) != os::Locked::kYes) return false;
  locks_[number] = true;
  return true;
}

void Lanes::unlock(PoolLock lock) noexcept {
  const auto number = static_cast<std::uint32_t>(lock);
  const std::lock_guard guard(mutex_);
  locks_[number] = false;
  os::unlock_byte(file_, size() + number);
}

}  // namespace flowtrain::channel
