#pragma once

#include <atomic>
#include <cstdint>

namespace flowtrain::lockfree {

/// State of a cell.
enum class CellState : std::uint8_t {
  kFree = 0,       ///< No lane holds the cell.
  kLeased = 1,     ///< A producer writes into the slab.
  kPublished = 2,  ///< Being published, in a ring, or being taken.
  kTaken = 3,      ///< A consumer reads the slab.
};

/// State of a cell, the lane that holds the cell, and the cell's generation, in one word:
/// `[generation:32 | publications:14 | owner:16 | state:2]`. The compare-and-swap that leases a
/// cell also names its owner, so every cell in use has an owner.
///
/// The word counts the publications of its generation, including those of consumers that put an
/// item back: a reaper that reads the same word twice knows that the cell was not published in
/// between.
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

/// The word of the same cell and generation in another state. kPublished counts a publication.
constexpr CellWord moved(CellWord word, CellState state, std::uint16_t owner) {
  return cell_word(state, owner, generation_of(word),
                   publications_of(word) + (state == CellState::kPublished ? 1 : 0));
}

/// The word of the freed cell. Its generation is one higher.
constexpr CellWord freed(CellWord word) {
  return cell_word(CellState::kFree, 0, generation_of(word) + 1);
}

// All transitions of a cell:
//
//   from                transition  to          by
//   kFree               try_lease   kLeased     a producer
//   kLeased             publish     kPublished  its producer
//   kTaken              publish     kPublished  its consumer, to put the item back; a reaper, for a
//                                               dead consumer
//   kPublished          publish     kPublished  a reaper, for a dead lane
//   kPublished          take        kTaken      the consumer that removed the cell from its ring
//   kPublished          unpublish   kLeased     the publisher that found the ring full
//   kLeased             release     kFree       its producer, to abort; a reaper, for a dead lane
//   kTaken              release     kFree       its consumer; a reaper, if the cell's ring does not
//                                               exist
//   kPublished          release     kFree       a reaper, if the cell never entered a ring, or its
//                                               ring does not exist
//
// Only try_lease competes with other participants. Out of each other state exactly one participant
// may write the word: the cell's owner, the consumer that removed the cell from a ring, or the
// reaper of a dead owner.

/// Leases a free cell to `lane` if its word is still the one `seen`; false if the cell is not free,
/// or another lane was faster.
inline bool try_lease(AtomicCell& cell, std::uint16_t lane, CellWord seen) noexcept {
  // Sequentially consistent: see channel/cells/segment_lease.hpp.
  return state_of(seen) == CellState::kFree &&
         cell.compare_exchange_strong(seen, moved(seen, CellState::kLeased, lane),
                                      std::memory_order_seq_cst);  // sync: cell.word
}

inline bool try_lease(AtomicCell& cell, std::uint16_t lane) noexcept {
  return try_lease(cell, lane, cell.load(std::memory_order_relaxed));
}

namespace detail {

inline void move(AtomicCell& cell, CellState state, std::uint16_t lane) noexcept {
  const CellWord word = cell.load(std::memory_order_relaxed);
  cell.store(moved(word, state, lane), std::memory_order_release);  // sync: cell.word
}

}  // namespace detail

/// Marks a cell as published by `lane`, before the cell enters a ring.
inline void publish(AtomicCell& cell, std::uint16_t lane) noexcept {
  detail::move(cell, CellState::kPublished, lane);
}

/// Undoes `publish` of a cell that did not enter the ring.
inline void unpublish(AtomicCell& cell, std::uint16_t lane) noexcept {
  detail::move(cell, CellState::kLeased, lane);
}

/// Marks a cell as taken by `lane`, after the cell left its ring.
inline void take(AtomicCell& cell, std::uint16_t lane) noexcept {
  detail::move(cell, CellState::kTaken, lane);
}

/// Frees a cell; channel::release_cell also wakes waiting producers.
inline void release(AtomicCell& cell) noexcept {
  const CellWord used = cell.load(std::memory_order_relaxed);
  cell.store(freed(used), std::memory_order_release);  // sync: cell.word
}

}  // namespace flowtrain::lockfree
