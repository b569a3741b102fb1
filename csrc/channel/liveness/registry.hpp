#pragma once

#include <mutex>

#include "base/deadline.hpp"

namespace flowtrain::channel {

class Pool;

/// Registry of the handles of this process, for forks and for the end of the process.
///
/// A forked child shares the open file descriptions, and so the byte locks: while the child lives,
/// the parent's death would not be seen. So the child closes the files of all registered handles at
/// once.
void unregister_pool(Pool* pool);

/// While an object of it lives, no other thread forks. So no child inherits a control file that is
/// open but whose handle is not registered yet. The holder must not wait for anything.
class NoFork {
 public:
  NoFork();
  void register_pool(Pool* pool);

 private:
  std::lock_guard<std::mutex> lock_;
};

/// Closes all handles of this process. Called at exit, so that a clean end is not seen as a death.
///
/// Errors: PoolTimeout, after all are closed, with the messages of all.
void close_all_pools(const Interrupted& interrupted);

}  // namespace flowtrain::channel
