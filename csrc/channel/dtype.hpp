#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <span>
#include <string_view>

#include "memory/address.hpp"

namespace flowtrain::channel {

/// A dtype that items may have, in the words of DLPack and of the buffer protocol.
struct Dtype {
  std::string_view name;
  std::uint8_t dlpack_code;  ///< DLDataTypeCode.
  std::uint8_t bits;
  const char* format;  ///< Format of the buffer protocol, or null where it has none.
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

/// Its place in kDtypes, by which descriptors name it.
constexpr std::optional<std::uint8_t> dtype_number(std::string_view name) {
  for (std::size_t i = 0; i < kDtypes.size(); ++i) {
    if (kDtypes[i].name == name) return static_cast<std::uint8_t>(i);
  }
  return std::nullopt;
}

/// Bytes of an array of a dtype; nothing where it has more than a segment may have, or would have
/// if no dimension were 0: strides are made of the others.
constexpr std::optional<std::uint64_t> array_bytes(std::uint8_t dtype,
                                                   std::span<const std::uint32_t> shape) {
  const std::uint64_t one = kDtypes[dtype].bits / 8;
  std::uint64_t most = one;
  bool empty = false;
  for (const std::uint32_t dim : shape) {
    empty |= dim == 0;
    if (dim != 0 && most > memory::kMaxSegmentBytes / dim) return std::nullopt;
    most *= dim == 0 ? 1 : dim;
  }
  return empty ? 0 : most;
}

}  // namespace flowtrain::channel
