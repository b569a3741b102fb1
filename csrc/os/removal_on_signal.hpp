#pragma once

#include <string>

#include "os/fd.hpp"

namespace flowtrain::os {

/// Removes a pool's folder if SIGTERM, SIGHUP or SIGINT ends the process, which then runs neither
/// destructors nor exit handlers.
///
/// The first object installs a signal handler, but only where the action is the default one. The
/// handler removes the folders, and then lets the default action end the process at once. So
/// ignored signals stay ignored, and a program's own handler, installed before or later, replaces
/// this one; if it exits, the pool is closed as at any exit.
///
/// Memory:   an entry of a list of this process; entries are reused, never freed.
/// Threads:  any.
/// Progress: wait-free; the handler makes only async-signal-safe calls.
/// Ordering: signal.entry publishes an entry.
/// Errors:   std::bad_alloc.
class RemovalOnSignal {
 public:
  /// @param folder  Outlives this object.
  /// @param name    Of the folder, in the folder that contains it.
  RemovalOnSignal(const Fd& folder, const std::string& name);
  ~RemovalOnSignal();
  RemovalOnSignal(const RemovalOnSignal&) = delete;
  RemovalOnSignal& operator=(const RemovalOnSignal&) = delete;

  struct Entry;

 private:
  Entry* entry_;
};

}  // namespace flowtrain::os
