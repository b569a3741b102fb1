#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "channel/layout/control.hpp"

namespace flowtrain::channel {

/// Checks the descriptor of a taken item, which any process of the pool can write: dtype, shape,
/// slab, producer and segment. Returns what is wrong; nothing if all of it may be used.
std::optional<std::string> find_fault(const Control& control, const Descriptor& item,
                                      std::uint32_t cell);

}  // namespace flowtrain::channel
