#pragma once

#include <cstddef>
#include <cstdint>
#include <string_view>

namespace flowtrain {

/// Whether bytes are valid UTF-8 by Python's rules: no overlong forms, no surrogates.
inline bool is_utf8(std::string_view bytes) {
  constexpr std::uint32_t kMinPoint[] = {0, 0x80, 0x800, 0x10000};
  for (std::size_t i = 0; i < bytes.size();) {
    const auto first = static_cast<unsigned char>(bytes[i++]);
    const std::size_t more = first < 0x80             ? 0
                             : (first & 0xe0) == 0xc0 ? 1
                             : (first & 0xf0) == 0xe0 ? 2
                             : (first & 0xf8) == 0xf0 ? 3
                                                      : bytes.size();
    if (more > bytes.size() - i) return false;
    std::uint32_t point = more == 0 ? first : first & (0x3fU >> more);
    for (const std::size_t end = i + more; i < end; ++i) {
      const auto next = static_cast<unsigned char>(bytes[i]);
      if ((next & 0xc0) != 0x80) return false;
      point = point << 6 | (next & 0x3fU);
    }
    if (point < kMinPoint[more] || point > 0x10ffff || (point >= 0xd800 && point < 0xe000)) {
      return false;
    }
  }
  return true;
}

}  // namespace flowtrain
