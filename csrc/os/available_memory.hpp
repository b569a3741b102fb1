#pragma once

#include <cstdint>
#include <string>

namespace flowtrain::os {

/// Memory available for new pages, shared memory included.
struct AvailableMemory {
  std::uint64_t bytes;
  std::string limit;  ///< Name of the lowest limit, for messages.
};

/// Minimum of the kernel's estimate for the machine and of the memory left below the limit of each
/// visible memory cgroup of this process (cgroup v1 and v2). A cgroup's inactive file cache counts
/// as available.
///
/// @param root  Folder that holds `/proc` and `/sys`.
AvailableMemory available_memory(const std::string& root = "");

}  // namespace flowtrain::os
