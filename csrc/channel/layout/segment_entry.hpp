#pragma once

#include <atomic>
#include <cstdint>

#include "base/math.hpp"
#include "base/relaxed.hpp"
#include "memory/address.hpp"
#include "memory/place.hpp"

namespace flowtrain::channel {

inline constexpr std::uint32_t kMaxSegments = 64;
inline constexpr std::uint32_t kMaxClasses = 64;

/// kMaking: it has cells, but no memory yet.
/// kDraining: its owner has gone or dropped it; published items in it may still be read.
/// kDead: no cell of it is in use. It has no cells any more, and its entry may be reused as long as
/// there is a generation that the entry has not had.
enum class SegmentState : std::uint8_t { kEmpty, kMaking, kLive, kDraining, kDead };

/// `[generation:32 | owner:16 | state:16]`. One store claims an entry together with its owner, so
/// that recovery can attribute a half-made segment. Only 16 bits of the generation are used, as
/// many as an address has.
using SegmentWord = std::uint64_t;

inline constexpr std::uint16_t kLastGeneration = UINT16_MAX;

constexpr SegmentWord segment_word(SegmentState state, std::uint16_t generation,
                                   std::uint16_t owner) {
  return std::uint64_t{generation} << 32 | std::uint64_t{owner} << 16 |
         static_cast<std::uint64_t>(state);
}
constexpr SegmentState state_of(SegmentWord word) { return static_cast<SegmentState>(word & 0xff); }
constexpr std::uint16_t generation_of(SegmentWord word) {
  return static_cast<std::uint16_t>(word >> 32);
}
constexpr std::uint16_t owner_of(SegmentWord word) {
  return static_cast<std::uint16_t>(word >> 16);
}
constexpr SegmentWord moved(SegmentWord word, SegmentState state) {
  return segment_word(state, generation_of(word), owner_of(word));
}
/// Whether the cells that an entry names belong to it, see Placement.
constexpr bool has_cells(SegmentWord word) {
  return state_of(word) != SegmentState::kEmpty && state_of(word) != SegmentState::kDead;
}
/// Whether its owner can hand out memory for it.
constexpr bool has_memory(SegmentWord word) {
  return state_of(word) == SegmentState::kLive || state_of(word) == SegmentState::kDraining;
}

struct ClassEntry {
  Relaxed<std::uint64_t> slab_bytes;
  Relaxed<std::uint32_t> first;  ///< First cell of the class, counted over the pool.
  Relaxed<std::uint32_t> count;
};

/// A segment as every process finds it. Its number is index + 1, because segment 0 is null.
struct alignas(kCacheLine) SegmentEntry {
  std::atomic<SegmentWord> word;
  Relaxed<std::uint32_t> first_cell;
  Relaxed<std::uint32_t> num_cells;
  Relaxed<std::uint16_t> num_classes;  ///< 0 if slabs are made by SlabMaker.
  Relaxed<memory::Kind> kind;
  // Of SlabMaker. After a death the sum may be too small and the ends too large, until it is next
  // called for this segment.
  std::atomic<std::uint32_t> num_slabs;  ///< Cells that may have a slab; those behind have none.
  Relaxed<std::uint64_t> bytes;
  Relaxed<std::uint64_t> slab_bytes;   ///< Sum over the slabs.
  Relaxed<std::uint64_t> slabs_end;    ///< Offset behind the last slab.
  Relaxed<std::uint64_t> device_high;  ///< See memory::DeviceId.
  Relaxed<std::uint64_t> device_low;
  ClassEntry classes[kMaxClasses];

  /// Of its memory; any process could have written it.
  memory::Place place() const { return {kind, {device_high, device_low}}; }
};

// All but the classes are read for each item.
static_assert(sizeof(SegmentEntry) == kCacheLine + sizeof(SegmentEntry::classes));
static_assert(kMaxSegments < std::uint64_t{1} << memory::kSegmentBits);

}  // namespace flowtrain::channel
