#include "cuda/vmm.hpp"

#include <utility>

#include "base/math.hpp"
#include "cuda/device.hpp"
#include "cuda/driver.hpp"

namespace flowtrain::cuda {
namespace {

CUmemAllocationProp properties_of(int device, bool rdma) {
  CUmemAllocationProp properties{};
  properties.type = CU_MEM_ALLOCATION_TYPE_PINNED;
  properties.requestedHandleTypes = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
  properties.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
  properties.location.id = device;
  properties.allocFlags.gpuDirectRDMACapable = rdma ? 1 : 0;
  return properties;
}

std::uint64_t granularity_of(int device, bool rdma, CUmemAllocationGranularity_flags which) {
  const CUmemAllocationProp properties = properties_of(device, rdma);
  std::size_t granularity = 0;
  FLOWTRAIN_CUDA(MemGetAllocationGranularity, device_text(device), &granularity, &properties,
                 which);
  return granularity;
}

void check_size(const DeviceFacts& facts, std::uint64_t bytes) {
  if (bytes == 0 || bytes > facts.memory_bytes) {
    throw BadArgument("device segment of " + std::to_string(bytes) +
                      " bytes: " + device_text(facts.ordinal) + " has " +
                      std::to_string(facts.memory_bytes) + "; give 1 to that many");
  }
}

}  // namespace

VmmSegment VmmSegment::create(int device, std::uint64_t bytes) {
  const DeviceFacts facts = device_facts(device);
  check_size(facts, bytes);
  if (!facts.vmm || !facts.posix_fd) {
    throw CudaError(device_text(device) + " (" + facts.name + "): its memory cannot be exported " +
                    "as a descriptor; use an IPC segment, or host memory");
  }
  const ContextScope scope(device);
  const std::uint64_t rounded =
      round_up(bytes, granularity_of(device, facts.vmm_rdma, CU_MEM_ALLOC_GRANULARITY_RECOMMENDED));
  VmmSegment segment(device, rounded, facts.vmm_rdma);
  CUmemAllocationProp properties = properties_of(device, segment.rdma_);
  CUresult result = driver().MemCreate(&segment.handle_, rounded, &properties, 0);
  if (result != CUDA_SUCCESS && segment.rdma_) {
    // The device reports the capability, but a virtual machine may refuse such an allocation.
    segment.rdma_ = false;
    properties = properties_of(device, false);
    result = driver().MemCreate(&segment.handle_, rounded, &properties, 0);
  }
  check(result, "cuMemCreate", segment.text());
  segment.has_handle_ = true;
  segment.map();
  return segment;
}

VmmSegment VmmSegment::import(int device, const os::Fd& fd, std::uint64_t bytes) {
  check_size(device_facts(device), bytes);
  const ContextScope scope(device);
  const std::uint64_t granularity = granularity_of(device, false, CU_MEM_ALLOC_GRANULARITY_MINIMUM);
  if (bytes % granularity != 0) {
    throw BadArgument("device segment of " + std::to_string(bytes) +
                      " bytes: not a multiple of the granularity, " + std::to_string(granularity) +
                      "; pass the nbytes of the segment in the process that made it");
  }
  VmmSegment segment(device, bytes, false);
  // The driver takes the descriptor in place of the pointer to a handle.
  void* os_handle = reinterpret_cast<void*>(static_cast<std::uintptr_t>(fd.get()));
  FLOWTRAIN_CUDA(MemImportFromShareableHandle, segment.text(), &segment.handle_, os_handle,
                 CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR);
  segment.has_handle_ = true;
  segment.map();
  return segment;
}

void VmmSegment::map() {
  FLOWTRAIN_CUDA(MemAddressReserve, text(), &address_, bytes_, 0, 0, 0);
  FLOWTRAIN_CUDA(MemMap, text(), address_, bytes_, 0, handle_, 0);
  mapped_ = true;
  CUmemAccessDesc access{};
  access.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
  access.location.id = device_;
  access.flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE;
  FLOWTRAIN_CUDA(MemSetAccess, text(), address_, bytes_, &access, 1);
}

os::Fd VmmSegment::export_fd() const {
  const ContextScope scope(device_);
  int fd = -1;
  FLOWTRAIN_CUDA(MemExportToShareableHandle, text(), &fd, handle_,
                 CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0);
  return os::Fd(fd);
}

std::string VmmSegment::text() const {
  return "segment of " + std::to_string(bytes_) + " bytes on " + device_text(device_);
}

VmmSegment::VmmSegment(VmmSegment&& other) noexcept
    : device_(other.device_),
      bytes_(other.bytes_),
      rdma_(other.rdma_),
      has_handle_(std::exchange(other.has_handle_, false)),
      mapped_(std::exchange(other.mapped_, false)),
      handle_(std::exchange(other.handle_, 0)),
      address_(std::exchange(other.address_, 0)),
      made_here_(other.made_here_) {}

VmmSegment& VmmSegment::operator=(VmmSegment&& other) noexcept {
  std::swap(device_, other.device_);
  std::swap(bytes_, other.bytes_);
  std::swap(rdma_, other.rdma_);
  std::swap(has_handle_, other.has_handle_);
  std::swap(mapped_, other.mapped_);
  std::swap(handle_, other.handle_);
  std::swap(address_, other.address_);
  std::swap(made_here_, other.made_here_);
  return *this;
}

VmmSegment::~VmmSegment() {
  if ((!has_handle_ && address_ == 0) || !made_here_) return;
  try {
    const ContextScope scope(device_);
    if (mapped_) static_cast<void>(driver().MemUnmap(address_, bytes_));
    if (address_ != 0) static_cast<void>(driver().MemAddressFree(address_, bytes_));
    if (has_handle_) static_cast<void>(driver().MemRelease(handle_));
  } catch (const Error&) {
    // The driver is shutting down, and frees the memory of the process itself.
  }
}

}  // namespace flowtrain::cuda
