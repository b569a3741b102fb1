#pragma once

#include <cstdint>
#include <string>

namespace flowtrain::os {

/// Memory that new pages can still be had from, shared memory included.
struct AvailableMemory {
  std::uint64_t bytes;
  std::string limit;  ///< Which limit is the lowest, for messages.
};

/// The minimum of what the kernel estimates for the machine and what each memory cgroup of this
/// process, up to the topmost that can be seen, leaves of its limit (cgroup v1 and v2). File cache
/// that a cgroup has not used lately counts as available.
///
/// @param root  Folder in which `/proc` and `/sys` are looked up.
AvailableMemory available_memory(const std::string& root = "");

}  // namespace flowtrain::os
