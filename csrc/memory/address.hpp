#pragma once

#include <cstdint>

namespace flowtrain::memory {

/// Global address: `[generation:16 | segment:8 | offset:40]`. Segment 0 is null. Every process
/// resolves addresses with a table of its own. An entry of the segment table never has the same
/// generation twice, so an address that outlived its segment is detected and never dereferenced.
using Address = std::uint64_t;

inline constexpr int kOffsetBits = 40;
inline constexpr int kSegmentBits = 8;
inline constexpr std::uint64_t kMaxSegmentBytes = std::uint64_t{1} << kOffsetBits;

constexpr Address make_address(std::uint16_t generation, std::uint8_t segment,
                               std::uint64_t offset) {
  return std::uint64_t{generation} << (kOffsetBits + kSegmentBits) |
         std::uint64_t{segment} << kOffsetBits | (offset & (kMaxSegmentBytes - 1));
}

constexpr std::uint16_t generation_of(Address address) {
  return static_cast<std::uint16_t>(address >> (kOffsetBits + kSegmentBits));
}
constexpr std::uint8_t segment_of(Address address) {
  return static_cast<std::uint8_t>(address >> kOffsetBits);
}
constexpr std::uint64_t offset_of(Address address) { return address & (kMaxSegmentBytes - 1); }

}  // namespace flowtrain::memory
