#include "cuda/ipc.hpp"

#include <cstring>
#include <map>
#include <mutex>

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

static_assert(sizeof(CUipcMemHandle) == sizeof(Exported::Handle));

/// An allocation of this process, or one of another process that is open here.
class Allocation {
 public:
  explicit Allocation(int device) : device_(device) {}
  Allocation(const Allocation&) = delete;
  Allocation& operator=(const Allocation&) = delete;
  ~Allocation() {
    if (address_ == 0 || !made_here_) return;
    try {
      const ContextScope scope(device_);
      static_cast<void>(owned_ ? driver().MemFree(address_) : driver().IpcCloseMemHandle(address_));
    } catch (const Error&) {
      // The driver is shutting down, and frees the memory of the process itself.
    }
  }

  void allocate(std::uint64_t bytes, const std::string& what) {
    check_memory(driver().MemAlloc(&address_, bytes), "cuMemAlloc", what);
    owned_ = true;
    CUipcMemHandle raw{};
    FLOWTRAIN_CUDA(IpcGetMemHandle, what, &raw, address_);
    std::memcpy(handle_.data(), &raw, sizeof(raw));
  }
  void open(const Exported::Handle& handle, const std::string& what) {
    CUipcMemHandle raw{};
    std::memcpy(&raw, handle.data(), sizeof(raw));
    FLOWTRAIN_CUDA(IpcOpenMemHandle,
                   what +
                       ": not possible between containers with separate PID namespaces, nor "
                       "once its creator is gone",
                   &address_, raw, CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS);
  }
  /// Bytes from the address on, whatever the other process says.
  std::uint64_t bytes(const std::string& what) const {
    CUdeviceptr base = 0;
    std::size_t bytes = 0;
    FLOWTRAIN_CUDA(MemGetAddressRange, what, &base, &bytes, address_);
    return bytes - (address_ - base);
  }

  CUdeviceptr address() const { return address_; }
  bool owned() const { return owned_; }
  const Exported::Handle& handle() const { return handle_; }

 private:
  int device_;
  CUdeviceptr address_ = 0;
  bool owned_ = false;
  Exported::Handle handle_{};  // If owned.
  os::MadeHere made_here_;
};

/// Allocations of this process by handle.
class Owned {
 public:
  void add(const std::shared_ptr<const Allocation>& allocation) {
    const std::lock_guard lock(mutex_);
    std::erase_if(by_handle_, [](const auto& each) { return each.second.expired(); });
    by_handle_[allocation->handle()] = allocation;
  }
  std::shared_ptr<const Allocation> find(const Exported::Handle& handle) {
    const std::lock_guard lock(mutex_);
    const auto found = by_handle_.find(handle);
    return found == by_handle_.end() ? nullptr : found->second.lock();
  }

 private:
  std::mutex mutex_;
  std::map<Exported::Handle, std::weak_ptr<const Allocation>> by_handle_;
};

Owned& owned() {
  static auto* const all = new Owned;
  return *all;
}

class Ipc final : public memory::Backing {
 public:
  explicit Ipc(std::shared_ptr<const Allocation> allocation) : allocation_(std::move(allocation)) {}

  Exported export_memory() const override {
    Exported out;
    if (allocation_->owned()) out.handle = allocation_->handle();
    return out;
  }

 private:
  std::shared_ptr<const Allocation> allocation_;
};

std::unique_ptr<Memory> memory_of(std::shared_ptr<const Allocation> allocation,
                                  const DeviceId& device, int ordinal, std::uint64_t bytes) {
  const CUdeviceptr address = allocation->address();
  return std::make_unique<Memory>(memory::Place{Kind::kIpc, device}, ordinal, address, nullptr,
                                  bytes, std::make_unique<const Ipc>(std::move(allocation)));
}

class IpcResource final : public memory::Resource {
 public:
  std::unique_ptr<Memory> allocate(const DeviceId& device, std::uint64_t bytes,
                                   const std::string& name) const override {
    const DeviceFacts facts = facts_of(device);
    check_size(facts, bytes, name);
    const ContextScope scope(facts.ordinal);
    const auto made = std::make_shared<Allocation>(facts.ordinal);
    made->allocate(bytes, segment_text(name, bytes, facts.ordinal));
    owned().add(made);
    return memory_of(made, device, facts.ordinal, bytes);
  }

  std::unique_ptr<Memory> import(Exported exported, const DeviceId& device, std::uint64_t bytes,
                                 const std::string& name) const override {
    const DeviceFacts facts = facts_of(device);
    if (exported.fds[0] || exported.fds[1] || !exported.handle) return nullptr;
    const ContextScope scope(facts.ordinal);
    const std::string what = segment_text(name, bytes, facts.ordinal);
    std::shared_ptr<const Allocation> found = owned().find(*exported.handle);
    if (!found) {
      const auto opened = std::make_shared<Allocation>(facts.ordinal);
      opened->open(*exported.handle, what);
      found = opened;
    }
    if (found->bytes(what) < bytes) return nullptr;
    return memory_of(std::move(found), device, facts.ordinal, bytes);
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

  std::string why_not(const DeviceId& device) const override { return why_not_shared(device); }
};

}  // namespace

const memory::Resource& ipc() {
  static const auto* const resource = new IpcResource;
  return *resource;
}

}  // namespace flowtrain::cuda
