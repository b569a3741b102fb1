// Registrations of host memory, and device memory: memfds, so that processes share it.

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cstdlib>
#include <cstring>
#include <mutex>

#include "call.hpp"

namespace fake {
namespace {

constexpr std::size_t kGranularity = std::size_t{2} << 20;

std::mutex mutex;
std::map<const std::byte*, std::size_t> registered;  ///< Under mutex.

/// Memory of cuMemAlloc, or opened by its handle.
struct Allocation {
  std::size_t bytes;
  int fd;  ///< -1 if another process made it.
};
std::map<CUdeviceptr, Allocation> allocations;  ///< Under mutex.

/// Contents of a CUipcMemHandle: the process that made the memory, and its memfd there.
struct Handle {
  pid_t pid;
  int fd;
  std::size_t bytes;
};

/// Waits until the file that a variable names is made; false if it takes too long.
bool passes(const char* variable) {
  const char* gate = std::getenv(variable);
  for (int waited_ms = 0; gate != nullptr && ::access(gate, F_OK) != 0; ++waited_ms) {
    if (waited_ms == 5000) return false;
    ::usleep(1000);
  }
  return true;
}

CUresult host_register(void* data, std::size_t bytes, unsigned) {
  CALL_IN_CONTEXT(cuMemHostRegister)
  if (!passes("FAKE_CUDA_GATE")) return CUDA_ERROR_NOT_READY;
  // A real driver locks the pages: memory that is not mapped is a fault.
  for (std::size_t i = 0; i < bytes; i += 4096) static_cast<volatile char*>(data)[i];
  const std::lock_guard lock(mutex);
  return registered.emplace(static_cast<std::byte*>(data), bytes).second
             ? CUDA_SUCCESS
             : CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED;
}
CUresult host_unregister(void* data) {
  CALL_IN_CONTEXT(cuMemHostUnregister)
  // The core ignores a failure here.
  if (!passes("FAKE_CUDA_END_GATE")) std::abort();
  const std::lock_guard lock(mutex);
  if (registered.erase(static_cast<std::byte*>(data)) == 0) {
    return CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED;
  }
  static_cast<void>(*static_cast<volatile char*>(data));  // Still mapped.
  return CUDA_SUCCESS;
}
CUresult host_pointer(CUdeviceptr* out, void* data, unsigned) {
  CALL_IN_CONTEXT(cuMemHostGetDevicePointer)
  return *out = reinterpret_cast<CUdeviceptr>(data), CUDA_SUCCESS;
}

int make_memory(std::size_t bytes) {
  const int fd = ::memfd_create("fake device memory", MFD_CLOEXEC);
  if (fd >= 0 && ::ftruncate(fd, static_cast<off_t>(bytes)) != 0) {
    ::close(fd);
    return -1;
  }
  return fd;
}

CUresult granularity(std::size_t* out, const CUmemAllocationProp*,
                     CUmemAllocationGranularity_flags) {
  return *out = kGranularity, CUDA_SUCCESS;
}
CUresult create(CUmemGenericAllocationHandle* out, std::size_t bytes,
                const CUmemAllocationProp* properties, unsigned long long) {
  CALL(cuMemCreate)
  if (bytes % kGranularity != 0) return CUDA_ERROR_INVALID_VALUE;
  if (properties->requestedHandleTypes != CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  const int fd = make_memory(bytes);
  if (fd < 0) return CUDA_ERROR_OUT_OF_MEMORY;
  return *out = static_cast<CUmemGenericAllocationHandle>(fd), CUDA_SUCCESS;
}
CUresult release(CUmemGenericAllocationHandle handle) {
  CALL(cuMemRelease)
  return ::close(static_cast<int>(handle)) == 0 ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}
CUresult export_handle(void* out, CUmemGenericAllocationHandle handle, CUmemAllocationHandleType,
                       unsigned long long) {
  CALL(cuMemExportToShareableHandle)
  *static_cast<int*>(out) = ::fcntl(static_cast<int>(handle), F_DUPFD_CLOEXEC, 0);
  return CUDA_SUCCESS;
}
CUresult import_handle(CUmemGenericAllocationHandle* out, void* fd, CUmemAllocationHandleType) {
  CALL(cuMemImportFromShareableHandle)
  const int copy =
      ::fcntl(static_cast<int>(reinterpret_cast<std::intptr_t>(fd)), F_DUPFD_CLOEXEC, 0);
  if (copy < 0) return CUDA_ERROR_INVALID_VALUE;
  return *out = static_cast<CUmemGenericAllocationHandle>(copy), CUDA_SUCCESS;
}
CUresult reserve(CUdeviceptr* out, std::size_t bytes, std::size_t, CUdeviceptr,
                 unsigned long long) {
  CALL(cuMemAddressReserve)
  void* found = ::mmap(nullptr, bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  return *out = reinterpret_cast<CUdeviceptr>(found), CUDA_SUCCESS;
}
CUresult give_back(CUdeviceptr address, std::size_t bytes) {
  CALL(cuMemAddressFree)
  return ::munmap(at(address), bytes) == 0 ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}
CUresult map(CUdeviceptr address, std::size_t bytes, std::size_t,
             CUmemGenericAllocationHandle handle, unsigned long long) {
  CALL(cuMemMap)
  void* found =
      ::mmap(at(address), bytes, PROT_NONE, MAP_SHARED | MAP_FIXED, static_cast<int>(handle), 0);
  return found == at(address) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}
CUresult unmap(CUdeviceptr address, std::size_t bytes) {
  CALL(cuMemUnmap)
  ::mmap(at(address), bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0);
  return CUDA_SUCCESS;
}
CUresult set_access(CUdeviceptr address, std::size_t bytes, const CUmemAccessDesc*, std::size_t) {
  CALL(cuMemSetAccess)
  return ::mprotect(at(address), bytes, PROT_READ | PROT_WRITE) == 0 ? CUDA_SUCCESS
                                                                     : CUDA_ERROR_INVALID_VALUE;
}

/// Maps memory that one process made by cuMemAlloc.
CUresult map_allocation(CUdeviceptr* out, int fd, const Allocation& allocation) {
  void* data = ::mmap(nullptr, allocation.bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
  if (data == MAP_FAILED) return CUDA_ERROR_OUT_OF_MEMORY;
  *out = reinterpret_cast<CUdeviceptr>(data);
  const std::lock_guard lock(mutex);
  allocations[*out] = allocation;
  return CUDA_SUCCESS;
}
CUresult unmap_allocation(CUdeviceptr address) {
  const std::lock_guard lock(mutex);
  const auto found = allocations.find(address);
  if (found == allocations.end()) return CUDA_ERROR_INVALID_VALUE;
  ::munmap(at(address), found->second.bytes);
  if (found->second.fd >= 0) ::close(found->second.fd);
  allocations.erase(found);
  return CUDA_SUCCESS;
}
CUresult allocate(CUdeviceptr* out, std::size_t bytes) {
  CALL_IN_CONTEXT(cuMemAlloc)
  const int fd = make_memory(bytes);
  return fd < 0 ? CUDA_ERROR_OUT_OF_MEMORY : map_allocation(out, fd, {bytes, fd});
}
CUresult deallocate(CUdeviceptr address) {
  CALL_IN_CONTEXT(cuMemFree)
  return unmap_allocation(address);
}
CUresult range(CUdeviceptr* base, std::size_t* bytes, CUdeviceptr address) {
  CALL_IN_CONTEXT(cuMemGetAddressRange)
  const std::lock_guard lock(mutex);
  const auto found = allocations.find(address);
  if (found == allocations.end()) return CUDA_ERROR_INVALID_VALUE;
  return *base = address, *bytes = found->second.bytes, CUDA_SUCCESS;
}
CUresult ipc_get(CUipcMemHandle* out, CUdeviceptr address) {
  CALL_IN_CONTEXT(cuIpcGetMemHandle)
  const std::lock_guard lock(mutex);
  const auto found = allocations.find(address);
  if (found == allocations.end()) return CUDA_ERROR_INVALID_VALUE;
  const Handle handle{::getpid(), found->second.fd, found->second.bytes};
  std::memset(out, 0, sizeof(*out));
  std::memcpy(out, &handle, sizeof(handle));
  return CUDA_SUCCESS;
}
CUresult ipc_open(CUdeviceptr* out, CUipcMemHandle raw, unsigned) {
  CALL_IN_CONTEXT(cuIpcOpenMemHandle)
  Handle handle{};
  std::memcpy(&handle, &raw, sizeof(handle));
  if (handle.pid == ::getpid()) return CUDA_ERROR_INVALID_CONTEXT;  // As the real one.
  const std::string path =
      "/proc/" + std::to_string(handle.pid) + "/fd/" + std::to_string(handle.fd);
  const int fd = ::open(path.c_str(), O_RDWR | O_CLOEXEC);
  if (fd < 0) return CUDA_ERROR_INVALID_HANDLE;
  const CUresult result = map_allocation(out, fd, {handle.bytes, -1});
  ::close(fd);
  return result;
}
CUresult ipc_close(CUdeviceptr address) {
  CALL_IN_CONTEXT(cuIpcCloseMemHandle)
  return unmap_allocation(address);
}

}  // namespace

bool is_registered(const void* data, std::size_t bytes) {
  const auto* first = static_cast<const std::byte*>(data);
  const std::lock_guard lock(mutex);
  auto found = registered.upper_bound(first);
  if (found == registered.begin()) return false;
  --found;
  return first + bytes <= found->first + found->second;
}

Calls memory_calls() {
  return {
      {"cuMemHostRegister", pointer(host_register)},
      {"cuMemHostUnregister", pointer(host_unregister)},
      {"cuMemHostGetDevicePointer", pointer(host_pointer)},
      {"cuMemGetAllocationGranularity", pointer(granularity)},
      {"cuMemCreate", pointer(create)},
      {"cuMemRelease", pointer(release)},
      {"cuMemExportToShareableHandle", pointer(export_handle)},
      {"cuMemImportFromShareableHandle", pointer(import_handle)},
      {"cuMemAddressReserve", pointer(reserve)},
      {"cuMemAddressFree", pointer(give_back)},
      {"cuMemMap", pointer(map)},
      {"cuMemUnmap", pointer(unmap)},
      {"cuMemSetAccess", pointer(set_access)},
      {"cuMemAlloc", pointer(allocate)},
      {"cuMemFree", pointer(deallocate)},
      {"cuMemGetAddressRange", pointer(range)},
      {"cuIpcGetMemHandle", pointer(ipc_get)},
      {"cuIpcOpenMemHandle", pointer(ipc_open)},
      {"cuIpcCloseMemHandle", pointer(ipc_close)},
  };
}

}  // namespace fake
