#include "memory/place.hpp"

#include <cstdio>

namespace flowtrain::memory {

std::string text(const DeviceId& device) {
  std::array<char, 37> out{};
  const auto part = [](std::uint64_t word, int shift) {
    return static_cast<unsigned>(word >> shift & 0xffff);
  };
  std::snprintf(out.data(), out.size(), "%08x-%04x-%04x-%04x-%04x%08x",
                static_cast<unsigned>(device.high >> 32), part(device.high, 16),
                part(device.high, 0), part(device.low, 48), part(device.low, 32),
                static_cast<unsigned>(device.low & 0xffffffff));
  return out.data();
}

std::string text(const Place& place) {
  const auto number = static_cast<std::size_t>(place.kind);
  const std::string kind =
      number < kNumKinds ? std::string("'") + kKindNames[number] + "'" : std::to_string(number);
  return place.device == DeviceId{} ? kind : kind + " on device " + text(place.device);
}

}  // namespace flowtrain::memory
