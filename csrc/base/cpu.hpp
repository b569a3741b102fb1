#pragma once

namespace flowtrain {

/// Hint to the core inside a loop that spins on another core's write.
inline void pause_core() noexcept {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  // Takes about as long as x86's pause; `yield` is a no-op on most ARM cores.
  asm volatile("isb" : : : "memory");
#else
  asm volatile("" : : : "memory");
#endif
}

/// Prefetches the cache line of an address for a write.
inline void prefetch_to_write(const void* at) noexcept {
#if defined(__x86_64__)
  // The builtin emits it only for newer targets; older processors treat it as a no-op.
  asm volatile("prefetchw %0" : : "m"(*static_cast<const char*>(at)));
#else
  __builtin_prefetch(at, 1);
#endif
}

/// Prefetches the cache line of an address for a read.
inline void prefetch_to_read(const void* at) noexcept { __builtin_prefetch(at, 0); }

}  // namespace flowtrain
