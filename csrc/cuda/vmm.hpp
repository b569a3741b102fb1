#pragma once

#include "memory/resource.hpp"

namespace flowtrain::cuda {

/// Device memory by virtual memory management: one physical allocation a segment, for GPUDirect
/// RDMA if the device offers it, exported as a POSIX descriptor. It lives until every process that
/// maps it has unmapped it.
const memory::Resource& vmm();

}  // namespace flowtrain::cuda
