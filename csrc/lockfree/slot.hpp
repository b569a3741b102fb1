#pragma once

#include <cstdint>

namespace flowtrain::lockfree {

/// Consecutive cells of one lane that are published and taken together; none if `count` is 0.
struct Run {
  std::uint32_t first = 0;
  std::uint32_t count = 0;

  constexpr bool holds(std::uint32_t cell) const { return cell - first < count; }
  constexpr bool operator==(const Run&) const = default;
};

inline constexpr std::uint32_t kMaxRunCells = 255;
inline constexpr std::uint32_t kMaxCells = std::uint32_t{1} << 24;

/// A run in one word, `[count:8 | first:24]`; 0 for none.
using RunWord = std::uint32_t;

constexpr RunWord run_word(const Run& run) { return run.count << 24 | run.first; }
constexpr Run run_of(RunWord word) { return {word & (kMaxCells - 1), word >> 24}; }

/// One word of the index ring: `[lap:31 | full:1 | count:8 | first:24]`.
///
/// A slot is either empty for a lap or full in it. So publishing and taking are one
/// compare-and-swap each, and no slot is ever claimed before it is published. A consumer that wants
/// fewer cells than a run has leaves the rest in the slot; within a lap a slot never gains cells.
/// A *ticket* numbers slots over all laps: `lap * capacity + index`. Lap and full bit together are
/// the slot's *phase*, which only ever increases by one.
using SlotWord = std::uint64_t;

inline constexpr std::uint64_t kLapMask = (std::uint64_t{1} << 31) - 1;

constexpr SlotWord empty_slot(std::uint64_t lap) { return (lap & kLapMask) << 33; }

constexpr SlotWord full_slot(std::uint64_t lap, const Run& run) {
  return empty_slot(lap) | std::uint64_t{1} << 32 | run_word(run);
}

/// Phases from "empty for `lap`" to the slot's phase. 0: empty for `lap`; 1: full in `lap`; 2 or
/// more: emptied in `lap`; -1: full in the lap before. Laps may wrap around.
constexpr std::int32_t phases_past(SlotWord word, std::uint64_t lap) {
  return static_cast<std::int32_t>(static_cast<std::uint32_t>(word >> 32) -
                                   static_cast<std::uint32_t>(empty_slot(lap) >> 32));
}

constexpr bool is_full(SlotWord word) { return (word >> 32 & 1) != 0; }
constexpr Run run_in(SlotWord word) { return run_of(static_cast<RunWord>(word)); }

}  // namespace flowtrain::lockfree
