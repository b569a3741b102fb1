#pragma once

#include <atomic>
#include <cstdint>

namespace flowtrain::lockfree {

/// Where a cell is in its life.
enum class CellState : std::uint8_t {
  kFree = 0,    ///< Nobody's.
  kOwned = 1,   ///< A producer writes into it.
  kInRing = 2,  ///< A producer is publishing it, or has.
  kHeld = 3,    ///< A consumer reads it.
};

/// State of a cell with the lane that answers for it and its generation, in one word:
/// `[generation:40 | owner:16 | state:8]`. An allocation is one compare-and-swap that carries
/// its owner, so nothing anonymous can leak.
using CellWord = std::uint64_t;
using AtomicCell = std::atomic<CellWord>;

inline constexpr std::uint64_t kGenerationMask = (std::uint64_t{1} << 40) - 1;

constexpr CellWord cell_word(CellState state, std::uint16_t owner, std::uint64_t generation) {
  return (generation & kGenerationMask) << 24 | std::uint64_t{owner} << 8 |
         static_cast<std::uint64_t>(state);
}

constexpr CellState state_of(CellWord word) { return static_cast<CellState>(word & 0xff); }
constexpr std::uint16_t owner_of(CellWord word) {
  return static_cast<std::uint16_t>(word >> 8 & 0xffff);
}
constexpr std::uint64_t generation_of(CellWord word) { return word >> 24; }

/// The same cell in another state: publishing and taking keep the generation.
constexpr CellWord moved(CellWord word, CellState state, std::uint16_t owner) {
  return cell_word(state, owner, generation_of(word));
}

/// The cell given back; its next life has another generation.
constexpr CellWord freed(CellWord word) {
  return cell_word(CellState::kFree, 0, generation_of(word) + 1);
}

}  // namespace flowtrain::lockfree
