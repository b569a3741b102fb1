#pragma once

#include <cstddef>

namespace flowtrain::memory {

/// From so many bytes on, what is copied is not kept in caches: it would not stay there until
/// somebody reads it.
inline constexpr std::size_t kStreamedBytes = std::size_t{16} << 20;

/// memcpy, which writes much memory past the caches. A plain copy first reads what it is about to
/// overwrite, which costs most where pages are small, as in shared memory.
///
/// Memory:   the two must not overlap.
/// Threads:  any.
/// Progress: wait-free.
/// Ordering: what was written is seen by whoever sees a later release of this thread.
/// Errors:   never throws.
void copy(std::byte* to, const std::byte* from, std::size_t bytes) noexcept;

}  // namespace flowtrain::memory
