#pragma once

#include <cstddef>
#include <cstdint>

namespace flowtrain {

inline constexpr std::size_t kCacheLine = 64;
/// Alignment of the layout of files and segments. The kernel's pages may be larger.
inline constexpr std::uint64_t kPageBytes = 4096;

constexpr std::uint64_t round_up(std::uint64_t value, std::uint64_t multiple) {
  return (value + multiple - 1) / multiple * multiple;
}

/// Quotient rounded up, of a value that is not negative.
constexpr std::int64_t divide_up(std::int64_t value, std::int64_t by) {
  return (value + by - 1) / by;
}

}  // namespace flowtrain
