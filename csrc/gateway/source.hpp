#pragma once

#include <cstdint>

#include "channel/layout/control.hpp"
#include "memory/address.hpp"

namespace flowtrain::gateway {

/// A segment of a pool, by its number and generation, as in an address without its offset.
using SourceId = std::uint32_t;

constexpr SourceId source_of(memory::Address address) {
  return static_cast<SourceId>(address >> memory::kOffsetBits);
}

inline const channel::SegmentEntry& entry_of(const channel::Control& control, SourceId source) {
  return control.segment((source & ((1u << memory::kSegmentBits) - 1)) - 1);
}

/// Whether the segment has its memory still.
inline bool lasts(const channel::Control& control, SourceId source) noexcept {
  const auto word =
      entry_of(control, source).word.load(std::memory_order_acquire);  // sync: segment.word
  return channel::has_memory(word) &&
         channel::generation_of(word) == static_cast<std::uint16_t>(source >> memory::kSegmentBits);
}

}  // namespace flowtrain::gateway
