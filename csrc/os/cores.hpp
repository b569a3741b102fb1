#pragma once

#include <cstdint>
#include <vector>

namespace flowtrain::os {

/// Numbers of the cores that the calling thread may run on; at least one.
std::vector<int> cores();

/// Keeps the calling thread on one of `cores()`, those of consecutive turns on different ones as
/// far as there are so many.
void pin_to_core(std::uint32_t turn);

}  // namespace flowtrain::os
