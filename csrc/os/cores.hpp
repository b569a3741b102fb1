#pragma once

#include <cstdint>
#include <vector>

namespace flowtrain::os {

/// Cores that the calling thread may run on; at least one.
std::vector<int> cores();

/// Pins the calling thread to core `index % cores().size()` of `cores()`.
void pin_to_core(std::uint32_t index);

}  // namespace flowtrain::os
