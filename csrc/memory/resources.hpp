#pragma once

#include <array>
#include <string>

#include "memory/resource.hpp"

namespace flowtrain::memory {

/// The resource of each kind, by its number; null for a kind that this build lacks.
using Resources = std::array<const Resource*, kNumKinds>;

/// Those that need no device.
Resources host_resources();

inline const Resource* resource_of(const Resources& resources, Kind kind) {
  return resources[static_cast<std::size_t>(kind)];
}

/// Why this process cannot use memory at a valid place, and what to do; empty if it can.
std::string why_not(const Resources& resources, const Place& place);

}  // namespace flowtrain::memory
