#pragma once

#include <cstdint>

namespace flowtrain::lockfree {

/// One word of the index ring: `[lap:31 | full:1 | index:32]`.
///
/// A slot is empty for a lap or full in it, so that publishing and taking are each one
/// compare-and-swap and nothing is ever claimed but unpublished.
using SlotWord = std::uint64_t;

inline constexpr std::uint64_t kLapMask = (std::uint64_t{1} << 31) - 1;

constexpr SlotWord empty_slot(std::uint64_t lap) { return (lap & kLapMask) << 33; }

constexpr SlotWord full_slot(std::uint64_t lap, std::uint32_t index) {
  return empty_slot(lap) | std::uint64_t{1} << 32 | index;
}

constexpr bool is_full(SlotWord word) { return (word >> 32 & 1) != 0; }
constexpr std::uint64_t lap_of(SlotWord word) { return word >> 33; }
constexpr std::uint32_t index_of(SlotWord word) { return static_cast<std::uint32_t>(word); }

}  // namespace flowtrain::lockfree
