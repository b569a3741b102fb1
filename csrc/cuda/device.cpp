#include "cuda/device.hpp"

#include <array>
#include <optional>

#include "base/error.hpp"
#include "cuda/context.hpp"
#include "cuda/driver.hpp"

namespace flowtrain::cuda {
namespace {

/// Attributes that headers before CUDA 12.4 lack; a driver knows them by number.
constexpr auto kFabricSupported = static_cast<CUdevice_attribute>(128);
constexpr auto kHostNumaId = static_cast<CUdevice_attribute>(134);

memory::DeviceId id_of(const CUuuid& uuid) {
  const auto word = [&](int first) {
    std::uint64_t out = 0;
    for (int i = 0; i < 8; ++i) out = out << 8 | static_cast<unsigned char>(uuid.bytes[first + i]);
    return out;
  };
  return {word(0), word(8)};
}

memory::DeviceId id_of(int device) {
  CUuuid uuid{};
  FLOWTRAIN_CUDA(DeviceGetUuid, device_text(device), &uuid, device_handle(device));
  return id_of(uuid);
}

/// Number of a device in this process; nothing if it does not see the device.
std::optional<int> ordinal_of(const memory::DeviceId& id) {
  for (int i = 0; i < device_count(); ++i) {
    if (id_of(i) == id) return i;
  }
  return std::nullopt;
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
  facts.id = id_of(uuid);
  facts.uuid = (facts.mig ? "MIG-" : "GPU-") + text(facts.id);
  facts.pci_bus_id = bus.data();
  facts.memory_bytes = bytes;
  facts.capability_major = attribute(CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR);
  facts.capability_minor = attribute(CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR);
  facts.host_register = attribute(CU_DEVICE_ATTRIBUTE_HOST_REGISTER_SUPPORTED) != 0;
  facts.host_pointers = attribute(CU_DEVICE_ATTRIBUTE_CAN_USE_HOST_POINTER_FOR_REGISTERED_MEM) != 0;
  facts.vmm = attribute(CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED) != 0;
  facts.posix_fd = attribute(CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR_SUPPORTED) != 0;
  facts.fabric = attribute(kFabricSupported) != 0;
  facts.vmm_rdma = attribute(CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_WITH_CUDA_VMM_SUPPORTED) != 0;
  facts.stream_words = attribute(CU_DEVICE_ATTRIBUTE_CAN_USE_64_BIT_STREAM_MEM_OPS) != 0;
  facts.numa_node = attribute(kHostNumaId, -1);
  return facts;
}

std::vector<DeviceFacts> devices() {
  std::vector<DeviceFacts> out;
  for (int i = 0; i < device_count(); ++i) out.push_back(device_facts(i));
  return out;
}

DeviceFacts facts_of(const memory::DeviceId& id) {
  if (const auto ordinal = ordinal_of(id)) return device_facts(*ordinal);
  throw MemoryUnreachable("device " + text(id) + ": " + why_not_shared(id));
}

std::string why_not_shared(const memory::DeviceId& id) {
  if (const std::string reason = why_not(); !reason.empty()) return reason;
  const std::optional<int> ordinal = ordinal_of(id);
  if (!ordinal) return "this process does not see the device; add it to CUDA_VISIBLE_DEVICES";
  const DeviceFacts facts = device_facts(*ordinal);
  return facts.mig ? facts.name + " shares no memory with other processes; use memory of the host"
                   : "";
}

void check_size(const DeviceFacts& facts, std::uint64_t bytes, const std::string& name) {
  if (bytes > 0 && bytes <= facts.memory_bytes) return;
  throw BadArgument(segment_text(name, bytes, facts.ordinal) + ", which has " +
                    std::to_string(facts.memory_bytes) + "; give 1 to that many");
}

std::string segment_text(const std::string& name, std::uint64_t bytes, int device) {
  return "segment '" + name + "' of " + std::to_string(bytes) + " bytes on " + device_text(device);
}

}  // namespace flowtrain::cuda
