#include "memory/copy.hpp"

#include <cstdint>
#include <cstring>

#include "base/math.hpp"

#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace flowtrain::memory {
namespace {

#if defined(__x86_64__)

constexpr std::size_t kBlockBytes = 4 * kCacheLine;
constexpr std::size_t kAheadBytes = 2048;

/// Copies whole blocks; `to` is aligned to a cache line.
__attribute__((target("avx2"))) void stream(std::byte* to, const std::byte* from,
                                            std::size_t bytes) noexcept {
  for (std::size_t at = 0; at < bytes; at += kBlockBytes) {
    for (std::size_t line = 0; line < kBlockBytes; line += kCacheLine) {
      // Harmless beyond the end.
      _mm_prefetch(reinterpret_cast<const char*>(from + at + line + kAheadBytes), _MM_HINT_T0);
    }
    for (std::size_t part = 0; part < kBlockBytes; part += sizeof(__m256i)) {
      _mm256_stream_si256(reinterpret_cast<__m256i*>(to + at + part),
                          _mm256_loadu_si256(reinterpret_cast<const __m256i*>(from + at + part)));
    }
  }
  _mm_sfence();  // Nothing else orders these stores.
}

bool can_stream() noexcept {
  static const bool can = __builtin_cpu_supports("avx2") != 0;
  return can;
}

#endif

}  // namespace

void copy(std::byte* to, const std::byte* from, std::size_t bytes) noexcept {
#if defined(__x86_64__)
  if (bytes >= kStreamedBytes && can_stream()) {
    const std::size_t head = (kCacheLine - reinterpret_cast<std::uintptr_t>(to)) % kCacheLine;
    const std::size_t body = (bytes - head) / kBlockBytes * kBlockBytes;
    std::memcpy(to, from, head);
    stream(to + head, from + head, body);
    std::memcpy(to + head + body, from + head + body, bytes - head - body);
    return;
  }
#endif
  if (bytes > 0) std::memcpy(to, from, bytes);
}

}  // namespace flowtrain::memory
