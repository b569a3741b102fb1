#include <algorithm>
#include <array>
#include <utility>
#include <vector>

#include "check.hpp"
#include "memory/copy.hpp"

namespace memory = flowtrain::memory;
using memory::kStreamedBytes;

int main() {
  constexpr std::size_t kRoom = 512;
  std::vector<std::byte> from(kStreamedBytes + kRoom), to(from.size());
  for (std::size_t i = 0; i < from.size(); ++i) from[i] = static_cast<std::byte>(i * 37 >> 3);
  const auto untouched = [](std::byte b) { return b == std::byte{0xA5}; };
  memory::copy(to.data(), from.data(), 0);
  // Heads, tails and sources that are not aligned to blocks.
  constexpr std::array<std::pair<std::ptrdiff_t, std::size_t>, 5> kCases{{
      {0, kStreamedBytes},
      {1, kStreamedBytes + 1},
      {63, kStreamedBytes + 255},
      {64, kStreamedBytes - 1},
      {5, 7},
  }};
  for (const auto& [at, bytes] : kCases) {
    std::fill(to.begin(), to.end(), std::byte{0xA5});
    memory::copy(to.data() + at, from.data() + at / 2, bytes);
    const auto end = to.begin() + at + static_cast<std::ptrdiff_t>(bytes);
    CHECK(std::equal(to.begin() + at, end, from.begin() + at / 2));
    CHECK(std::all_of(to.begin(), to.begin() + at, untouched));
    CHECK(std::all_of(end, to.end(), untouched));
  }
}
