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
/// `[generation:32 | publications:14 | owner:16 | state:2]`. An allocation is one compare-and-swap
/// that carries its owner, so nothing anonymous can leak.
///
/// Publications are counted, also those by whoever puts an item back, since a reaper that finds a
/// word unchanged concludes that the cell was not published in between.
using CellWord = std::uint64_t;
using AtomicCell = std::atomic<CellWord>;

inline constexpr std::uint64_t kGenerationMask = (std::uint64_t{1} << 32) - 1;
inline constexpr std::uint64_t kPublicationsMask = (std::uint64_t{1} << 14) - 1;

constexpr CellWord cell_word(CellState state, std::uint16_t owner, std::uint64_t generation,
                             std::uint64_t publications = 0) {
  return (generation & kGenerationMask) << 32 | (publications & kPublicationsMask) << 18 |
         std::uint64_t{owner} << 2 | static_cast<std::uint64_t>(state);
}

constexpr CellState state_of(CellWord word) { return static_cast<CellState>(word & 0x3); }
constexpr std::uint16_t owner_of(CellWord word) {
  return static_cast<std::uint16_t>(word >> 2 & 0xffff);
}
constexpr std::uint64_t publications_of(CellWord word) { return word >> 18 & kPublicationsMask; }
constexpr std::uint64_t generation_of(CellWord word) { return word >> 32; }

/// The same cell in another state, of the same generation.
constexpr CellWord moved(CellWord word, CellState state, std::uint16_t owner) {
  return cell_word(state, owner, generation_of(word),
                   publications_of(word) + (state == CellState::kInRing ? 1 : 0));
}

/// The cell given back; its next life has another generation.
constexpr CellWord freed(CellWord word) {
  return cell_word(CellState::kFree, 0, generation_of(word) + 1);
}

}  // namespace flowtrain::lockfree
