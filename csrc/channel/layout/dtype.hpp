#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <span>
#include <string_view>

#include "memory/address.hpp"

namespace flowtrain::channel {

/// A dtype of items, in terms of DLPack and of the buffer protocol.
struct Dtype {
  std::string_view name;
  std::uint8_t dlpack_code;  ///< DLDataTypeCode.
  std::uint8_t bits;
  const char* format;  ///< Format of the buffer protocol; null if it has none.
};

inline constexpr std::array kDtypes = {
    Dtype{"float32", 2, 32, "f"}, Dtype{"float64", 2, 64, "d"},
    Dtype{"float16", 2, 16, "e"}, Dtype{"bfloat16", 4, 16, nullptr},
    Dtype{"int8", 0, 8, "b"},     Dtype{"int16", 0, 16, "h"},
    Dtype{"int32", 0, 32, "i"},   Dtype{"int64", 0, 64, "q"},
    Dtype{"uint8", 1, 8, "B"},    Dtype{"uint16", 1, 16, "H"},
    Dtype{"uint32", 1, 32, "I"},  Dtype{"uint64", 1, 64, "Q"},
    Dtype{"bool", 6, 8, "?"},     Dtype{"complex64", 5, 64, "Zf"},
};

/// Index in kDtypes, which descriptors store.
constexpr std::optional<std::uint8_t> dtype_number(std::string_view name) {
  for (std::size_t i = 0; i < kDtypes.size(); ++i) {
    if (kDtypes[i].name == name) return static_cast<std::uint8_t>(i);
  }
  return std::nullopt;
}

/// Bytes of an array; nothing if it is larger than a segment can be. Dimensions of 0 count as 1 for
/// this limit, because strides are products of the others.
constexpr std::optional<std::uint64_t> array_bytes(std::uint8_t dtype,
                                                   std::span<const std::uint32_t> shape) {
  std::uint64_t bytes = kDtypes[dtype].bits / 8;
  bool empty = false;
  for (const std::uint32_t dim : shape) {
    empty |= dim == 0;
    if (dim != 0 && bytes > memory::kMaxSegmentBytes / dim) return std::nullopt;
    bytes *= dim == 0 ? 1 : dim;
  }
  return empty ? 0 : bytes;
}

}  // namespace flowtrain::channel
