#pragma once

namespace flowtrain {

/// Tells the core that this is a loop that waits for another core.
inline void pause_core() noexcept {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  // Holds the core up about as long as x86's pause; `yield` does nothing on most of them.
  asm volatile("isb" : : : "memory");
#else
  asm volatile("" : : : "memory");
#endif
}

/// Asks for the cache line of an address, to be written: it comes from another core meanwhile.
inline void prefetch_to_write(const void* at) noexcept {
#if defined(__x86_64__)
  // The builtin emits it only for newer targets; where it is unknown it does nothing.
  asm volatile("prefetchw %0" : : "m"(*static_cast<const char*>(at)));
#else
  __builtin_prefetch(at, 1);
#endif
}

/// The same, to be read.
inline void prefetch_to_read(const void* at) noexcept { __builtin_prefetch(at, 0); }

}  // namespace flowtrain
