#pragma once

#include <cstdint>
#include <string>

#include "os/fd.hpp"

namespace flowtrain::os {

/// For a process that ends without closing its pools: leaves each pool, and removes the files of a
/// marked or own pool that no other process has open; see RemovalOnSignal. Makes only
/// async-signal-safe calls. The handles must not be used any more.
///
/// Threads: any.
void leave_pools() noexcept;

/// Installs a handler for SIGTERM, SIGHUP and SIGINT, but only where the action is the default one.
/// It calls leave_pools, and then lets the default action end the process at once. So ignored
/// signals stay ignored, and a program's own handler, installed before or later, replaces this one;
/// if it exits, the pool is closed as at any exit.
///
/// Threads: no other may set a handler meanwhile. In Python the caller holds the GIL.
void remove_pools_on_signals() noexcept;

/// While an object lives, leave_pools removes a pool's folder: a signal that ends the process, and
/// _exit, run neither destructors nor exit handlers.
///
/// Each handle of a pool has an object, and with it a shared lock of one byte of the control file.
/// In the creator's process leave_pools marks the folder. Then every process gives up its lock, and
/// removes a marked folder if no other has the lock. So the others keep the files while they live,
/// and the last one removes them, also if all leave at once. The locks of lanes are no measure:
/// they must hold until the process has ended.
///
/// Memory:   an entry of a list of this process; entries are reused, never freed, each with a
///           descriptor of its own, which never becomes that of another file.
/// Threads:  any.
/// Progress: wait-free.
/// Ordering: signal.entry publishes an entry.
/// Errors:   std::bad_alloc; SystemCallError without a free descriptor.
class RemovalOnSignal {
 public:
  /// @param control   File with the byte locks of the pool's participants. Outlives this object.
  /// @param presence  The byte.
  /// @param name      Of the folder, in the folder that contains it.
  RemovalOnSignal(const Fd& folder, const Fd& control, std::uint64_t presence,
                  const std::string& name, bool creator);
  ~RemovalOnSignal();
  RemovalOnSignal(const RemovalOnSignal&) = delete;
  RemovalOnSignal& operator=(const RemovalOnSignal&) = delete;

  /// Gives up the lock. Returns whether the creator has left the folder to the others, and no
  /// other process is left to remove it.
  bool leave() noexcept;
  /// In a forked child, which has its parent's lock, and in another PID namespace may have its
  /// process id: leaves both to the parent.
  void abandon() noexcept;

  struct Entry;

 private:
  Entry* entry_;
};

}  // namespace flowtrain::os
