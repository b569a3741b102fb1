#pragma once

#include <cstdint>
#include <string>

#include "os/fd.hpp"

namespace flowtrain::os {

/// Installs a handler for SIGTERM, SIGHUP and SIGINT, but only where the action is the default one.
/// It removes folders as RemovalOnSignal says, and then lets the default action end the process at
/// once. So ignored signals stay ignored, and a program's own handler,
/// installed before or later, replaces this one; if it exits, the pool is closed as at any exit.
///
/// Threads: no other may set a handler meanwhile. In Python the caller holds the GIL.
void remove_pools_on_signals() noexcept;

/// While an object lives, the handler of remove_pools_on_signals removes a pool's folder: a signal
/// that ends the process runs neither destructors nor exit handlers.
///
/// Each handle of a pool has an object, and with it a shared lock of one byte of the control file.
/// The handler of the creator's process marks the folder. Then every process gives up its lock, and
/// removes a marked folder if no other has the lock. So the others keep the files while they live,
/// and the last one removes them, also if one signal ends all of them at once. The locks of lanes
/// are no measure: they must hold until the process has ended.
///
/// Memory:   an entry of a list of this process; entries are reused, never freed, each with a
///           descriptor of its own, which never becomes that of another file.
/// Threads:  any.
/// Progress: wait-free; the handler makes only async-signal-safe calls.
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

  /// Gives up the lock. Returns whether a signal has ended the creator, and no other process is
  /// left to remove the folder.
  bool leave() noexcept;
  /// In a forked child, which has its parent's lock, and in another PID namespace may have its
  /// process id: leaves both to the parent.
  void abandon() noexcept;

  struct Entry;

 private:
  Entry* entry_;
};

}  // namespace flowtrain::os
