#pragma once

#include <string>

#include "os/fd.hpp"

namespace flowtrain::os {

/// Installs a handler for SIGTERM, SIGHUP and SIGINT, but only where the action is the default one.
/// It removes the folders of this process's RemovalOnSignal objects, and then lets the default
/// action end the process at once. So ignored signals stay ignored, and a program's own handler,
/// installed before or later, replaces this one; if it exits, the pool is closed as at any exit.
///
/// Threads: no other may set a handler meanwhile. In Python the caller holds the GIL.
void remove_pools_on_signals() noexcept;

/// While an object lives, the handler of remove_pools_on_signals removes a pool's folder: a signal
/// that ends the process runs neither destructors nor exit handlers. If another process of the pool
/// lives, and so needs the files, the handler only marks the folder, for the last one to remove.
///
/// Memory:   an entry of a list of this process; entries are reused, never freed, each with a
///           descriptor of its own, which never becomes that of another file.
/// Threads:  any. A forked child, whose process id may be the parent's in another PID namespace,
///           destroys its copy.
/// Progress: wait-free; the handler makes only async-signal-safe calls.
/// Ordering: signal.entry publishes an entry.
/// Errors:   std::bad_alloc; SystemCallError without a free descriptor.
class RemovalOnSignal {
 public:
  /// @param control  File with the byte locks of the pool's participants. Outlives this object.
  /// @param name     Of the folder, in the folder that contains it.
  RemovalOnSignal(const Fd& folder, const Fd& control, const std::string& name);
  ~RemovalOnSignal();
  RemovalOnSignal(const RemovalOnSignal&) = delete;
  RemovalOnSignal& operator=(const RemovalOnSignal&) = delete;

  struct Entry;

 private:
  Entry* entry_;
};

/// Whether a signal has ended the process whose object the folder had, while others lived.
bool is_orphaned(const Fd& folder) noexcept;

}  // namespace flowtrain::os
