#pragma once

namespace flowtrain::channel {

class Pool;

/// Handles of this process, for what concerns all of them: a fork, and the end.
///
/// A forked child shares the open file descriptions and with them the byte locks, so that the
/// parent's death would go unseen while the child lives: the child closes them at once.
void register_pool(Pool* pool);
void forget_pool(Pool* pool);

/// Closes every pool of this process: at exit, so that a clean end is not taken for a death.
void close_all_pools();

}  // namespace flowtrain::channel
