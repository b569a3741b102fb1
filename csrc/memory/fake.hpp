#pragma once

#include "memory/resource.hpp"

namespace flowtrain::memory {

/// Memory of the host that says that it is on a device, for tests of what the pool does with such
/// memory: it is mapped late, ends on a thread of its own, and every process can refuse it.
const Resource& fake();

/// UUID of a fake device.
DeviceId fake_device(std::uint32_t number);

}  // namespace flowtrain::memory
