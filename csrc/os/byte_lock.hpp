#pragma once

#include <cstdint>

#include "os/fd.hpp"

namespace flowtrain::os {

/// Locks on single bytes of a file, held by the open file description (F_OFD_SETLK).
///
/// The kernel drops a lock when the last descriptor of the description closes, hence at any death
/// of the process. This needs no process ids and works across PID namespaces. A forked child shares
/// the description, so it must close the descriptor (see channel/liveness/registry.hpp).
///
/// Threads: a description does not exclude itself; callers synchronise within a process.

enum class Locked { kYes, kHeld, kFailed };

/// Takes the exclusive lock of a byte. kHeld: another description holds it. kFailed: errno says
/// why, such as EINVAL where the kernel has no such locks.
Locked try_lock_byte(const Fd& file, std::uint64_t byte) noexcept;

/// Takes a shared lock of a byte, which any number of descriptions may have; false if that failed.
bool share_byte(const Fd& file, std::uint64_t byte) noexcept;

void unlock_byte(const Fd& file, std::uint64_t byte) noexcept;

/// Whether another description holds the lock of a byte.
bool is_byte_locked(const Fd& file, std::uint64_t byte) noexcept;

/// Whether another description holds the lock of any byte.
bool is_any_byte_locked(const Fd& file) noexcept;

/// The same by number, for a signal handler.
void unlock_byte(int file, std::uint64_t byte) noexcept;
bool is_byte_locked(int file, std::uint64_t byte) noexcept;

}  // namespace flowtrain::os
