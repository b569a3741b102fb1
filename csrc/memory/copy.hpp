#pragma once

#include <cstddef>

namespace flowtrain::memory {

/// Copies of at least this size bypass the caches: they would be evicted before they are read.
inline constexpr std::size_t kStreamedBytes = std::size_t{16} << 20;

/// memcpy that bypasses the caches for large copies. A plain copy first reads the memory that it
/// overwrites, which costs most with small pages, as in shared memory.
///
/// Memory:   the ranges must not overlap.
/// Threads:  any.
/// Progress: wait-free.
/// Ordering: a thread that sees a later release of this thread sees the copy.
/// Errors:   never throws.
void copy(std::byte* to, const std::byte* from, std::size_t bytes) noexcept;

}  // namespace flowtrain::memory
