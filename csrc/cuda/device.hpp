#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "memory/place.hpp"

namespace flowtrain::cuda {

/// Properties of a device, read without making a context on it.
struct DeviceFacts {
  int ordinal;
  std::string name;
  memory::DeviceId id;
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

/// Properties of a device by its UUID.
///
/// Errors: MemoryUnreachable if this process does not see it.
DeviceFacts facts_of(const memory::DeviceId& id);

/// Why this process cannot share memory of a device with others, and what to do; empty if it can.
std::string why_not_shared(const memory::DeviceId& id);

/// Errors: BadArgument for a segment of 0 bytes, or of more than the device has.
void check_size(const DeviceFacts& facts, std::uint64_t bytes, const std::string& name);

/// A segment in messages.
std::string segment_text(const std::string& name, std::uint64_t bytes, int device);

}  // namespace flowtrain::cuda
