#include "cuda/ipc.hpp"

#include <cstring>
#include <utility>

#include "cuda/device.hpp"
#include "cuda/driver.hpp"

namespace flowtrain::cuda {

IpcSegment IpcSegment::create(int device, std::uint64_t bytes) {
  const DeviceFacts facts = device_facts(device);
  if (bytes == 0 || bytes > facts.memory_bytes) {
    throw BadArgument("IPC segment of " + std::to_string(bytes) + " bytes: " + device_text(device) +
                      " has " + std::to_string(facts.memory_bytes) + "; give 1 to that many");
  }
  const ContextScope scope(device);
  IpcSegment segment(device, bytes, true);
  FLOWTRAIN_CUDA(MemAlloc, segment.text(), &segment.address_, bytes);
  return segment;
}

IpcSegment IpcSegment::open(int device, const std::string& handle, std::uint64_t bytes) {
  CUipcMemHandle raw{};
  if (handle.size() != sizeof(raw)) {
    throw BadArgument("IPC handle of " + std::to_string(handle.size()) + " bytes: must have " +
                      std::to_string(sizeof(raw)) + "; pass the result of handle()");
  }
  std::memcpy(&raw, handle.data(), sizeof(raw));
  const ContextScope scope(device);
  IpcSegment segment(device, bytes, false);
  const CUresult result =
      driver().IpcOpenMemHandle(&segment.address_, raw, CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS);
  if (result == CUDA_ERROR_INVALID_CONTEXT) {
    check(result, "cuIpcOpenMemHandle",
          segment.text() + ": the process that made a segment cannot open it; use its address");
  }
  check(result, "cuIpcOpenMemHandle", segment.text());
  return segment;
}

std::string IpcSegment::handle() const {
  const ContextScope scope(device_);
  CUipcMemHandle raw{};
  FLOWTRAIN_CUDA(IpcGetMemHandle,
                 text() +
                     ": not supported on MIG slices, nor between containers with "
                     "separate PID namespaces",
                 &raw, address_);
  return {reinterpret_cast<const char*>(&raw), sizeof(raw)};
}

std::string IpcSegment::text() const {
  return "IPC segment of " + std::to_string(bytes_) + " bytes on " + device_text(device_);
}

IpcSegment::IpcSegment(IpcSegment&& other) noexcept
    : device_(other.device_),
      bytes_(other.bytes_),
      owner_(other.owner_),
      address_(std::exchange(other.address_, 0)),
      made_here_(other.made_here_) {}

IpcSegment& IpcSegment::operator=(IpcSegment&& other) noexcept {
  std::swap(device_, other.device_);
  std::swap(bytes_, other.bytes_);
  std::swap(owner_, other.owner_);
  std::swap(address_, other.address_);
  std::swap(made_here_, other.made_here_);
  return *this;
}

IpcSegment::~IpcSegment() {
  if (address_ == 0 || !made_here_) return;
  try {
    const ContextScope scope(device_);
    static_cast<void>(owner_ ? driver().MemFree(address_) : driver().IpcCloseMemHandle(address_));
  } catch (const Error&) {
    // The driver is shutting down, and frees the memory of the process itself.
  }
}

}  // namespace flowtrain::cuda
