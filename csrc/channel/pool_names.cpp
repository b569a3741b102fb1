#include "channel/pool_names.hpp"

#include <chrono>
#include <filesystem>
#include <optional>
#include <thread>

#include "base/error.hpp"
#include "channel/layout/names.hpp"
#include "os/byte_lock.hpp"

namespace flowtrain::channel {
namespace {

constexpr double kClosingS = 1.0;  // A creator closes in milliseconds, unless a process is stopped.

/// Whether the creator's process ended without leaving the pool. Its lane is the first.
bool has_creator_died(const Control& control, const os::Fd& file) {
  const Lane& lane = control.lane(0);
  const LaneState state = lane.state.load(std::memory_order_acquire);  // sync: lane.state
  const bool own = lane.generation.load(std::memory_order_relaxed) == 1;
  if (!own || state == LaneState::kDying || state == LaneState::kDead) return true;
  return state == LaneState::kAlive && !os::is_byte_locked(file, 0);
}

PoolEntry entry_of(const std::string& name) {
  const std::string path = os::runtime_folder() + "/" + name + "/control";
  std::error_code none;
  const bool there = std::filesystem::is_regular_file(std::filesystem::symlink_status(path, none));
  // If reading fails, a living pool must not count as dead.
  PoolEntry entry{name, 0, 0, there, PoolState::kUnknown, {}};
  try {
    const os::Fd file = os::open_file(path);
    if (!file) return {name, 0, 0, false, PoolState::kNone, {}};
    // Living lanes are locked bytes in every version, also in one that this code cannot read.
    entry.alive = os::is_any_byte_locked(file);
    const std::optional<Control> control = Control::find(file, path);
    if (!control) return entry;
    entry.creator_pid = control->header().creator_pid;
    entry.nonce = control->header().nonce;
    entry.state = pool_state(*control, file);
  } catch (const SystemCallError& error) {
    entry.error = error.what();
  } catch (const Error&) {
    // It is of another version, or damaged.
  }
  return entry;
}

[[noreturn]] void throw_exists(const PoolEntry& found) {
  const std::string what = "pool '" + found.name + "': ";
  const std::string why = why_not_open(found.state, found.creator_pid);
  if (found.state == PoolState::kClosing) {
    throw PoolExists(what + why + ", which takes more than " +
                     std::to_string(static_cast<int>(kClosingS)) +
                     " s because a process that has it open does not answer, perhaps because it " +
                     "is stopped; try again, or choose another name");
  }
  if (found.state == PoolState::kHalfClosed) {
    throw PoolExists(what + why + "; end these processes, or choose another name");
  }
  if (!found.error.empty()) {
    throw PoolExists(what + "it exists, and may be in use: " + found.error +
                     "; or choose another name");
  }
  const std::string maker = found.creator_pid == 0 ? "another version of flowtrain_core"
                                                   : "pid " + std::to_string(found.creator_pid);
  throw PoolExists(what + "it exists, made by " + maker +
                   ", and is in use; open it or choose another name");
}

}  // namespace

bool admits_handles(const Control& control) noexcept {
  return control.header().admission.load(std::memory_order_acquire) ==  // sync: control.admission
         Admission::kOpen;
}

PoolState pool_state(const Control& control, const os::Fd& file) {
  // A pool without a living process was left by a crash, and may be created anew.
  if (!os::is_any_byte_locked(file)) return PoolState::kDead;
  if (admits_handles(control)) return PoolState::kOpen;
  const Admission now = control.header().admission.load(std::memory_order_relaxed);
  if (now != Admission::kClosing) return PoolState::kNotReady;
  return has_creator_died(control, file) ? PoolState::kHalfClosed : PoolState::kClosing;
}

std::string why_not_open(PoolState state, std::int32_t creator_pid) {
  const std::string creator = "its creator (pid " + std::to_string(creator_pid) + ")";
  const std::string in_folder = " in " + os::runtime_folder();
  switch (state) {
    case PoolState::kDead: return "its processes are all dead, and it is still" + in_folder;
    case PoolState::kNotReady: return creator + " is still making it";
    case PoolState::kClosing: return creator + " is closing it";
    case PoolState::kHalfClosed:
      return creator + " died while closing it, and other processes still have it open";
    case PoolState::kNone:
    case PoolState::kUnknown:
    case PoolState::kOpen: break;
  }
  return "there is none" + in_folder;
}

std::vector<PoolEntry> list_pools() {
  std::vector<PoolEntry> entries;
  for (const std::string& name : os::pool_names()) entries.push_back(entry_of(name));
  return entries;
}

bool pool_exists(const std::string& name) {
  check_name("pool", name);
  const PoolEntry found = entry_of(name);
  if (!found.error.empty()) throw SystemCallError(found.error);
  return found.state == PoolState::kOpen;
}

os::FolderLock claim_pool_name(const std::string& name, const Interrupted& interrupted) {
  const Deadline deadline = Deadline::in(kClosingS);
  for (;;) {
    {
      os::FolderLock alone = os::lock_runtime_folder(interrupted);
      if (!alone || os::make_pool_folder(name)) return alone;
      const PoolEntry found = entry_of(name);
      if (!found.alive) {
        os::remove_pool_folder(name);
        os::make_pool_folder(name);
        return alone;
      }
      if (found.state != PoolState::kClosing || deadline.passed()) throw_exists(found);
    }
    if (interrupted && interrupted()) return {};
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
}

bool unlink_pool(const std::string& name, bool only_left, const Interrupted& interrupted) {
  check_name("pool", name);
  // A process that creates a pool holds this lock until its lane is locked.
  const os::FolderLock alone = os::lock_runtime_folder(interrupted);
  if (!alone) return false;
  if (only_left && entry_of(name).alive) return false;
  return os::remove_pool_folder(name);
}

}  // namespace flowtrain::channel
