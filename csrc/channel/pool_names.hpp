#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/deadline.hpp"
#include "channel/layout/control.hpp"
#include "os/fd.hpp"
#include "os/folder.hpp"

namespace flowtrain::channel {

/// Whether a pool can be opened, or why not. kDead: no process of it lives. kUnknown: it cannot be
/// read, for example because it is of another version. kClosing: its creator is closing it.
/// kHalfClosed: its creator died meanwhile.
enum class PoolState { kNone, kDead, kUnknown, kNotReady, kOpen, kClosing, kHalfClosed };

/// A pool of this user, by its folder.
struct PoolEntry {
  std::string name;
  std::int32_t creator_pid;  ///< 0 if it was never finished, or is of another version.
  std::uint64_t nonce;       ///< As Header::nonce; 0 likewise.
  bool alive;                ///< Whether a process holds a lane of it.
  PoolState state;
  std::string error;  ///< Why its control file cannot be opened; empty if it can.
};

PoolState pool_state(const Control& control, const os::Fd& file);
/// Whether the creator has made the pool, and is not closing it.
bool admits_handles(const Control& control) noexcept;
/// Why a pool cannot be opened, for messages.
std::string why_not_open(PoolState state, std::int32_t creator_pid);

std::vector<PoolEntry> list_pools();
/// Whether a pool of this name can be opened.
///
/// Errors: SystemCallError if its control file cannot be.
bool pool_exists(const std::string& name);
/// Makes an empty folder for a new pool, in place of one that dead processes left. A pool that its
/// creator is closing is waited for, at most kClosingS. Nobody else makes a pool while the result
/// lives, which is empty only if `interrupted` ended a wait.
///
/// Errors: PoolExists if a process has a pool of this name.
os::FolderLock claim_pool_name(const std::string& name, const Interrupted& interrupted);
/// Removes a pool's name. Returns false if there was none, or if `interrupted` ended the wait for
/// processes that create pools. Open handles stay usable.
///
/// @param only_left  Return false, and keep the name, if a process has the pool open or creates it.
bool unlink_pool(const std::string& name, bool only_left = false,
                 const Interrupted& interrupted = {});

}  // namespace flowtrain::channel
