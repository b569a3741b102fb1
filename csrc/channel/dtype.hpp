#pragma once

#include <array>
#include <cstdint>
#include <string_view>

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

}  // namespace flowtrain::channel
