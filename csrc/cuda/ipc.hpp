#pragma once

#include "memory/resource.hpp"

namespace flowtrain::cuda {

/// Device memory by legacy IPC: one allocation a segment, exported as a handle of 64 bytes. For
/// devices and drivers that cannot export memory as a descriptor.
///
/// It is its creator's: only the creator exports it, and it must be freed after every other process
/// has unmapped it. In the process that made it, an import shares the allocation, which the driver
/// would not open a second time.
const memory::Resource& ipc();

}  // namespace flowtrain::cuda
