#include "cuda/vmm.hpp"

#include <cstring>

#include "base/math.hpp"
#include "cuda/context.hpp"
#include "cuda/device.hpp"
#include "cuda/driver.hpp"
#include "cuda/staging.hpp"
#include "cuda/stream_order.hpp"

namespace flowtrain::cuda {
namespace {

using memory::DeviceId;
using memory::Exported;
using memory::Kind;
using memory::Memory;

/// Sizes of an exported segment, sent with its descriptor.
struct Sizes {
  std::uint64_t bytes;
  std::uint64_t mapped;  ///< Rounded up to the granularity.
};
static_assert(sizeof(Sizes) <= sizeof(Exported::Handle));

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

/// A mapped allocation. Made in steps, of which the destructor undoes those that were taken.
class Vmm final : public memory::Backing {
 public:
  Vmm(int device, const Sizes& sizes, const std::string& name)
      : device_(device), sizes_(sizes), what_(segment_text(name, sizes.mapped, device)) {}

  ~Vmm() override {
    if ((!has_handle_ && address_ == 0) || !made_here_) return;
    try {
      const ContextScope scope(device_);
      if (mapped_) static_cast<void>(driver().MemUnmap(address_, sizes_.mapped));
      if (address_ != 0) static_cast<void>(driver().MemAddressFree(address_, sizes_.mapped));
      if (has_handle_) static_cast<void>(driver().MemRelease(handle_));
    } catch (const Error&) {
      // The driver is shutting down, and frees the memory of the process itself.
    }
  }

  void allocate(bool rdma) {
    CUmemAllocationProp properties = properties_of(device_, rdma);
    CUresult result = driver().MemCreate(&handle_, sizes_.mapped, &properties, 0);
    if (result != CUDA_SUCCESS && rdma) {
      // The device reports the capability, but a virtual machine may refuse such an allocation.
      properties = properties_of(device_, false);
      result = driver().MemCreate(&handle_, sizes_.mapped, &properties, 0);
    }
    check_memory(result, "cuMemCreate", what_);
    has_handle_ = true;
  }

  void import(os::Fd fd) {
    // The driver takes the descriptor in place of the pointer to a handle.
    void* os_handle = reinterpret_cast<void*>(static_cast<std::uintptr_t>(fd.get()));
    FLOWTRAIN_CUDA(MemImportFromShareableHandle, what_, &handle_, os_handle,
                   CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR);
    has_handle_ = true;
    fd_ = std::move(fd);
  }

  /// Reserves an address range, maps the allocation there, and grants the device access.
  void map() {
    FLOWTRAIN_CUDA(MemAddressReserve, what_, &address_, sizes_.mapped, 0, 0, 0);
    FLOWTRAIN_CUDA(MemMap, what_, address_, sizes_.mapped, 0, handle_, 0);
    mapped_ = true;
    CUmemAccessDesc access{};
    access.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
    access.location.id = device_;
    access.flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE;
    FLOWTRAIN_CUDA(MemSetAccess, what_, address_, sizes_.mapped, &access, 1);
  }

  Exported export_memory() const override {
    Exported out;
    if (fd_) {
      out.fds[0] = os::duplicate(fd_);
    } else {
      const ContextScope scope(device_);
      int fd = -1;
      FLOWTRAIN_CUDA(MemExportToShareableHandle, what_, &fd, handle_,
                     CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0);
      out.fds[0] = os::Fd(fd);
    }
    std::memcpy(out.handle.emplace().data(), &sizes_, sizeof(sizes_));
    return out;
  }

  CUdeviceptr address() const { return address_; }

 private:
  int device_;
  Sizes sizes_;
  std::string what_;
  bool has_handle_ = false;
  bool mapped_ = false;
  CUmemGenericAllocationHandle handle_ = 0;
  CUdeviceptr address_ = 0;
  os::Fd fd_;  // If imported: to hand out again.
  os::MadeHere made_here_;
};

std::unique_ptr<Memory> memory_of(std::unique_ptr<Vmm> mapped, const DeviceId& device, int ordinal,
                                  std::uint64_t bytes) {
  mapped->map();
  const CUdeviceptr address = mapped->address();
  return std::make_unique<Memory>(memory::Place{Kind::kVmm, device}, ordinal, address, nullptr,
                                  bytes, std::move(mapped));
}

class VmmResource final : public memory::Resource {
 public:
  std::unique_ptr<Memory> allocate(const DeviceId& device, std::uint64_t bytes,
                                   const std::string& name) const override {
    const DeviceFacts facts = facts_of(device);
    check_size(facts, bytes, name);
    const ContextScope scope(facts.ordinal);
    const std::uint64_t granularity =
        granularity_of(facts.ordinal, facts.vmm_rdma, CU_MEM_ALLOC_GRANULARITY_RECOMMENDED);
    const Sizes sizes{bytes, round_up(bytes, granularity)};
    auto made = std::make_unique<Vmm>(facts.ordinal, sizes, name);
    made->allocate(facts.vmm_rdma);
    return memory_of(std::move(made), device, facts.ordinal, bytes);
  }

  std::unique_ptr<Memory> import(Exported exported, const DeviceId& device, std::uint64_t bytes,
                                 const std::string& name) const override {
    const DeviceFacts facts = facts_of(device);
    auto& [fd, other] = exported.fds;
    if (!fd || other || !exported.handle) return nullptr;
    Sizes sizes{};
    std::memcpy(&sizes, exported.handle->data(), sizeof(sizes));
    const ContextScope scope(facts.ordinal);
    const std::uint64_t granularity =
        granularity_of(facts.ordinal, false, CU_MEM_ALLOC_GRANULARITY_MINIMUM);
    if (sizes.bytes != bytes || sizes.mapped < bytes || sizes.mapped > facts.memory_bytes ||
        sizes.mapped % granularity != 0) {
      return nullptr;
    }
    auto imported = std::make_unique<Vmm>(facts.ordinal, sizes, name);
    imported->import(std::move(fd));
    return memory_of(std::move(imported), device, facts.ordinal, bytes);
  }

  std::shared_ptr<const memory::StreamSteps> steps(const memory::StreamPage& page,
                                                   const DeviceId& device,
                                                   const std::string& what) const override {
    return std::make_shared<const StreamOrder>(page, facts_of(device).ordinal, what);
  }

  std::unique_ptr<memory::Staging> staging(std::shared_ptr<const Memory> segment,
                                           memory::Copies copies, memory::OnDone on_done,
                                           const std::string& name) const override {
    return make_staging(std::move(segment), copies, std::move(on_done), name);
  }

  std::string why_not(const DeviceId& device) const override {
    if (const std::string reason = why_not_shared(device); !reason.empty()) return reason;
    const DeviceFacts facts = facts_of(device);
    if (facts.vmm && facts.posix_fd) return "";
    return facts.name +
           " cannot export memory as a descriptor; use kind 'ipc', or memory of the host";
  }
};

}  // namespace

const memory::Resource& vmm() {
  static const auto* const resource = new VmmResource;
  return *resource;
}

}  // namespace flowtrain::cuda
