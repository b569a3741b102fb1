#pragma once

#include <cstdint>

#include "base/math.hpp"
#include "base/relaxed.hpp"
#include "channel/layout/descriptor.hpp"

namespace flowtrain::channel {

/// A *cell* stands for one slab: its descriptor and the slab's place. The cell's word is in a table
/// of its own, see lockfree/cell_word.hpp.
struct alignas(kCacheLine) Cell {
  Descriptor descriptor;
  Relaxed<memory::Address> slab;
  Relaxed<std::uint64_t> slab_bytes;
  Relaxed<std::uint64_t> item_bytes;   ///< Of the slab, those that the lease or item has.
  Relaxed<std::uint32_t> attempt;      ///< Deliveries before this one.
  Relaxed<std::uint16_t> ring;         ///< Ring of the item, for redelivery.
  Relaxed<std::uint16_t> producer;     ///< Lane that leased the cell; not reused before release.
  Relaxed<std::int64_t> published_ns;  ///< 0 if the item is not timed.
};

static_assert(sizeof(Cell) == 2 * kCacheLine);

/// Consecutive cells [first, end).
struct CellRange {
  std::uint32_t first;
  std::uint32_t end;
};

}  // namespace flowtrain::channel
