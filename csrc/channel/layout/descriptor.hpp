#pragma once

#include <cstdint>
#include <type_traits>

#include "base/math.hpp"
#include "memory/address.hpp"

namespace flowtrain::channel {

inline constexpr int kMaxDims = 4;

/// Describes one item: its place, key, dtype and shape. 64 fixed bytes.
struct Descriptor {
  memory::Address address;
  std::uint64_t bytes;
  std::uint64_t key_low;  ///< The caller's key, 128 bits.
  std::uint64_t key_high;
  std::uint64_t sequence;  ///< Items that the lane had published before.
  std::uint32_t shape[kMaxDims];
  std::uint16_t producer;  ///< Lane that published it.
  std::uint8_t dtype;
  std::uint8_t ndim;
  std::uint32_t generation;  ///< Of the slab's stream words; 0 in memory of the host.
};

static_assert(sizeof(Descriptor) == kCacheLine);
static_assert(std::is_trivially_copyable_v<Descriptor>);

}  // namespace flowtrain::channel
