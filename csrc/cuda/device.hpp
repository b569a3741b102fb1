#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace flowtrain::cuda {

/// What is known of a device without making a context on it.
struct DeviceFacts {
  int ordinal;
  std::string name;
  std::string uuid;  ///< `GPU-...` or `MIG-...`; the same in every process.
  std::string pci_bus_id;
  std::uint64_t memory_bytes;
  int capability_major;
  int capability_minor;
  bool mig;            ///< A slice of a device: it shares no memory with other processes' slices.
  bool host_register;  ///< Host memory can be registered.
  bool host_pointers;  ///< Registered memory has the same address on the device.
  bool vmm;            ///< Virtual memory management: memory apart from addresses.
  bool posix_fd;       ///< Its memory can be exported as a descriptor.
  bool fabric;         ///< Or as a fabric handle; whether an allocation gets one is another matter.
  bool vmm_rdma;       ///< Such memory can be read and written by a network card.
  bool stream_words;   ///< A stream can write and wait for a 64-bit word.
  int numa_node;       ///< Host memory nearest to it; -1 where that is unknown.
};

/// The devices that this process sees; none where there is no driver.
std::vector<DeviceFacts> devices();

/// Facts of one device.
///
/// Errors: BadArgument for a number that no device has.
DeviceFacts device_facts(int device);

}  // namespace flowtrain::cuda
