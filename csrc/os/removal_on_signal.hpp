#pragma once

#include <string>

#include "os/fd.hpp"

namespace flowtrain::os {

/// Removes a pool's folder if SIGTERM, SIGHUP or SIGINT ends the process, which then runs neither
/// destructors nor exit handlers.
///
/// An object installs a signal handler, but only where the action is the default one. The handler
/// removes the folders, and then lets the default action end the process at once. If another
/// process of the pool lives, and so needs the files, it only marks the folder, for the last one to
/// remove. So ignored signals stay ignored, and a program's own handler, installed before or later,
/// replaces this one; if it exits, the pool is closed as at any exit.
///
/// Memory:   an entry of a list of this process; entries are reused, never freed, each with a
///           descriptor of its own, which never becomes that of another file.
/// Threads:  any.
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
