#include "cuda/device.hpp"

#include <array>
#include <cstdio>

#include "cuda/context.hpp"
#include "cuda/driver.hpp"

namespace flowtrain::cuda {
namespace {

std::string uuid_text(const CUuuid& uuid, bool mig) {
  std::string out = mig ? "MIG-" : "GPU-";
  for (std::size_t i = 0; i < sizeof(uuid.bytes); ++i) {
    if (i == 4 || i == 6 || i == 8 || i == 10) out += '-';
    std::array<char, 3> hex{};
    std::snprintf(hex.data(), hex.size(), "%02x",
                  static_cast<unsigned>(static_cast<unsigned char>(uuid.bytes[i])));
    out += hex.data();
  }
  return out;
}

}  // namespace

DeviceFacts device_facts(int device) {
  const CUdevice handle = device_handle(device);
  const std::string what = device_text(device);
  const auto attribute = [&](CUdevice_attribute which, int unknown = 0) {
    int value = unknown;
    // An older driver may not know the attribute: then the device lacks the capability.
    return driver().DeviceGetAttribute(&value, which, handle) == CUDA_SUCCESS ? value : unknown;
  };
  std::array<char, 256> name{};
  FLOWTRAIN_CUDA(DeviceGetName, what, name.data(), static_cast<int>(name.size()) - 1, handle);
  std::array<char, 64> bus{};
  FLOWTRAIN_CUDA(DeviceGetPCIBusId, what, bus.data(), static_cast<int>(bus.size()) - 1, handle);
  CUuuid uuid{};
  FLOWTRAIN_CUDA(DeviceGetUuid, what, &uuid, handle);
  std::size_t bytes = 0;
  FLOWTRAIN_CUDA(DeviceTotalMem, what, &bytes, handle);
  DeviceFacts facts{};
  facts.ordinal = device;
  facts.name = name.data();
  // The driver has no attribute for it, but slices are named `... MIG 1g.18gb`.
  facts.mig = facts.name.find(" MIG ") != std::string::npos;
  facts.uuid = uuid_text(uuid, facts.mig);
  facts.pci_bus_id = bus.data();
  facts.memory_bytes = bytes;
  facts.capability_major = attribute(CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR);
  facts.capability_minor = attribute(CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR);
  facts.host_register = attribute(CU_DEVICE_ATTRIBUTE_HOST_REGISTER_SUPPORTED) != 0;
  facts.host_pointers = attribute(CU_DEVICE_ATTRIBUTE_CAN_USE_HOST_POINTER_FOR_REGISTERED_MEM) != 0;
  facts.vmm = attribute(CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED) != 0;
  facts.posix_fd = attribute(CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR_SUPPORTED) != 0;
  facts.fabric = attribute(CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_FABRIC_SUPPORTED) != 0;
  facts.vmm_rdma = attribute(CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_WITH_CUDA_VMM_SUPPORTED) != 0;
  facts.stream_words = attribute(CU_DEVICE_ATTRIBUTE_CAN_USE_64_BIT_STREAM_MEM_OPS) != 0;
  facts.numa_node = attribute(CU_DEVICE_ATTRIBUTE_HOST_NUMA_ID, -1);
  return facts;
}

std::vector<DeviceFacts> devices() {
  std::vector<DeviceFacts> out;
  for (int i = 0; i < device_count(); ++i) out.push_back(device_facts(i));
  return out;
}

}  // namespace flowtrain::cuda
