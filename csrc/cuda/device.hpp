#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace flowtrain::cuda {

/// Properties of a device, read without making a context on it.
struct DeviceFacts {
  int ordinal;
  std::string name;
  std::string uuid;  ///< `GPU-...` or `MIG-...`; the same in every process.
  std::string pci_bus_id;
  std::uint64_t memory_bytes;
  int capability_major;
  int capability_minor;
  bool mig;            ///< A MIG slice, which shares no memory with other slices.
  bool host_register;  ///< Host memory can be registered.
  bool host_pointers;  ///< Registered memory has the same address on the device.
  bool vmm;            ///< Virtual memory management is supported.
  bool posix_fd;       ///< Its memory can be exported as a POSIX descriptor.
  bool fabric;         ///< Fabric handles are supported, though not of every allocation.
  bool vmm_rdma;       ///< GPUDirect RDMA of exported memory is supported.
  bool stream_words;   ///< A stream can write and wait for a 64-bit word.
  int numa_node;       ///< Nearest NUMA node of the host; -1 if unknown.
};

/// Devices visible to this process; none without a driver.
std::vector<DeviceFacts> devices();

/// Properties of one device.
///
/// Errors: BadArgument if there is no such device.
DeviceFacts device_facts(int device);

}  // namespace flowtrain::cuda
