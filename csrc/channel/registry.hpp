#pragma once

#include <mutex>

namespace flowtrain::channel {

class Pool;

/// Handles of this process, for what concerns all of them: a fork, and the end.
///
/// A forked child shares the open file descriptions and with them the byte locks, so that the
/// parent's death would go unseen while the child lives: the child closes them at once.
void forget_pool(Pool* pool);

/// While one lives no other thread forks, so that no child inherits a control file that was opened
/// and whose pool is not registered yet. Nothing that waits may be done meanwhile.
class NoFork {
 public:
  NoFork();
  void register_pool(Pool* pool);

 private:
  std::lock_guard<std::mutex> lock_;
};

/// Closes every pool of this process: at exit, so that a clean end is not taken for a death.
void close_all_pools();

}  // namespace flowtrain::channel
