// A driver of one device whose memory is the host's: what the core asks of the real one, in which
// order, and what it does with refusals. Calls are written to the file that FAKE_CUDA_LOG names;
// FAKE_CUDA_REFUSE names one that fails with CUDA_ERROR_NOT_SUPPORTED, once. A registration waits
// for the file that FAKE_CUDA_GATE names, and fails if nobody makes it; the end of one waits for
// that of FAKE_CUDA_END_GATE.

#include <cuda.h>
#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <map>
#include <mutex>
#include <set>
#include <string>

namespace {

constexpr std::size_t kGranularity = std::size_t{2} << 20;
constexpr std::size_t kMemory = std::size_t{8} << 30;

std::mutex mutex;
std::map<void*, std::size_t> registered;
int depth = 0;

void* at(CUdeviceptr address) { return reinterpret_cast<void*>(address); }

/// Notes a call; whether it is to be refused.
bool refused(std::string name) {
  // The header gives some functions the name of their newest version.
  if (const auto version = name.find("_v"); version != std::string::npos) name.erase(version);
  static std::string refuse =
      std::getenv("FAKE_CUDA_REFUSE") ? std::getenv("FAKE_CUDA_REFUSE") : "";
  if (const char* path = std::getenv("FAKE_CUDA_LOG")) {
    if (FILE* log = std::fopen(path, "a")) {
      std::fprintf(log, "%s\n", name.c_str());
      std::fclose(log);
    }
  }
  if (refuse != name) return false;
  refuse.clear();
  return true;
}

#define CALL(name)                   \
  const std::lock_guard lock(mutex); \
  if (refused(#name)) return CUDA_ERROR_NOT_SUPPORTED;
/// A call that a real driver refuses where no context is current.
#define CALL_IN_CONTEXT(name) \
  CALL(name)                  \
  if (depth == 0) return CUDA_ERROR_INVALID_CONTEXT;

CUresult init(unsigned) { return CUDA_SUCCESS; }
CUresult version(int* out) { return *out = 13000, CUDA_SUCCESS; }
CUresult error_name(CUresult result, const char** out) {
  *out = result == CUDA_ERROR_NOT_SUPPORTED ? "CUDA_ERROR_NOT_SUPPORTED" : "CUDA_ERROR_OTHER";
  return CUDA_SUCCESS;
}
CUresult error_string(CUresult, const char** out) { return *out = "said the fake", CUDA_SUCCESS; }
CUresult count(int* out) { return *out = 1, CUDA_SUCCESS; }
CUresult get_device(CUdevice* out, int number) { return *out = number, CUDA_SUCCESS; }
CUresult get_name(char* out, int size, CUdevice) {
  std::snprintf(out, static_cast<std::size_t>(size), "Fake");
  return CUDA_SUCCESS;
}
CUresult get_bus(char* out, int size, CUdevice) {
  std::snprintf(out, static_cast<std::size_t>(size), "0000:00:00.0");
  return CUDA_SUCCESS;
}
CUresult get_uuid(CUuuid* out, CUdevice) {
  for (int i = 0; i < 16; ++i) out->bytes[i] = static_cast<char>(0xf0 + i);
  return CUDA_SUCCESS;
}
CUresult total(std::size_t* out, CUdevice) { return *out = kMemory, CUDA_SUCCESS; }
CUresult attribute(int* out, CUdevice_attribute which, CUdevice) {
  *out = which == CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR ? 9 : 1;
  return CUDA_SUCCESS;
}
CUresult retain(CUcontext* out, CUdevice) {
  return *out = reinterpret_cast<CUcontext>(&depth), CUDA_SUCCESS;
}
CUresult push(CUcontext) {
  const std::lock_guard lock(mutex);
  return ++depth, CUDA_SUCCESS;
}
CUresult pop(CUcontext*) {
  const std::lock_guard lock(mutex);
  return --depth, CUDA_SUCCESS;
}

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
  return registered.emplace(data, bytes).second ? CUDA_SUCCESS
                                                : CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED;
}
CUresult host_unregister(void* data) {
  CALL_IN_CONTEXT(cuMemHostUnregister)
  const auto found = registered.find(data);
  if (found == registered.end()) return CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED;
  static_cast<void>(*static_cast<volatile char*>(data));  // Still mapped.
  // The core ignores a failure here.
  if (!passes("FAKE_CUDA_END_GATE")) std::abort();
  registered.erase(found);
  return CUDA_SUCCESS;
}
CUresult host_pointer(CUdeviceptr* out, void* data, unsigned) {
  CALL_IN_CONTEXT(cuMemHostGetDevicePointer)
  return *out = reinterpret_cast<CUdeviceptr>(data), CUDA_SUCCESS;
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
  const int fd = ::memfd_create("fake device memory", MFD_CLOEXEC);
  if (fd < 0 || ::ftruncate(fd, static_cast<off_t>(bytes)) != 0) return CUDA_ERROR_OUT_OF_MEMORY;
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

/// Memory of cuMemAlloc, or opened by its handle.
struct Allocation {
  std::size_t bytes;
  int fd;  ///< -1 if another process made it.
};
std::map<CUdeviceptr, Allocation> allocations;

/// What CUipcMemHandle holds: where the process that made the memory has its memfd.
struct Handle {
  pid_t pid;
  int fd;
  std::size_t bytes;
};

CUresult map_allocation(CUdeviceptr* out, int fd, const Allocation& allocation) {
  void* data = ::mmap(nullptr, allocation.bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
  if (data == MAP_FAILED) return CUDA_ERROR_OUT_OF_MEMORY;
  *out = reinterpret_cast<CUdeviceptr>(data);
  allocations[*out] = allocation;
  return CUDA_SUCCESS;
}
CUresult unmap_allocation(CUdeviceptr address) {
  const auto found = allocations.find(address);
  if (found == allocations.end()) return CUDA_ERROR_INVALID_VALUE;
  ::munmap(at(address), found->second.bytes);
  if (found->second.fd >= 0) ::close(found->second.fd);
  allocations.erase(found);
  return CUDA_SUCCESS;
}
CUresult allocate(CUdeviceptr* out, std::size_t bytes) {
  CALL_IN_CONTEXT(cuMemAlloc)
  const int fd = ::memfd_create("fake device memory", MFD_CLOEXEC);
  if (fd < 0 || ::ftruncate(fd, static_cast<off_t>(bytes)) != 0) return CUDA_ERROR_OUT_OF_MEMORY;
  return map_allocation(out, fd, {bytes, fd});
}
CUresult deallocate(CUdeviceptr address) {
  CALL_IN_CONTEXT(cuMemFree)
  return unmap_allocation(address);
}
CUresult range(CUdeviceptr* base, std::size_t* bytes, CUdeviceptr address) {
  CALL_IN_CONTEXT(cuMemGetAddressRange)
  const auto found = allocations.find(address);
  if (found == allocations.end()) return CUDA_ERROR_INVALID_VALUE;
  return *base = address, *bytes = found->second.bytes, CUDA_SUCCESS;
}
CUresult ipc_get(CUipcMemHandle* out, CUdeviceptr address) {
  CALL_IN_CONTEXT(cuIpcGetMemHandle)
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
CUresult synchronize(CUstream) {
  CALL_IN_CONTEXT(cuStreamSynchronize)
  return CUDA_SUCCESS;
}
CUresult write_value(CUstream, CUdeviceptr address, cuuint64_t value, unsigned) {
  CALL_IN_CONTEXT(cuStreamWriteValue64)
  *static_cast<volatile cuuint64_t*>(at(address)) = value;
  return CUDA_SUCCESS;
}
CUresult wait_value(CUstream, CUdeviceptr address, cuuint64_t value, unsigned flags) {
  CALL_IN_CONTEXT(cuStreamWaitValue64)
  const cuuint64_t seen = *static_cast<volatile cuuint64_t*>(at(address));
  // By the sign of the difference, as documented; who would wait for ever is told.
  const bool free = flags == CU_STREAM_WAIT_VALUE_GEQ && static_cast<long long>(seen - value) >= 0;
  return free ? CUDA_SUCCESS : CUDA_ERROR_NOT_READY;
}
CUresult to_device(CUdeviceptr target, const void* source, std::size_t bytes, CUstream) {
  CALL_IN_CONTEXT(cuMemcpyHtoDAsync)
  return std::memcpy(at(target), source, bytes), CUDA_SUCCESS;
}
CUresult to_host(void* target, CUdeviceptr source, std::size_t bytes, CUstream) {
  CALL_IN_CONTEXT(cuMemcpyDtoHAsync)
  return std::memcpy(target, at(source), bytes), CUDA_SUCCESS;
}
CUresult on_device(CUdeviceptr target, CUdeviceptr source, std::size_t bytes, CUstream) {
  CALL_IN_CONTEXT(cuMemcpyDtoDAsync)
  return std::memcpy(at(target), at(source), bytes), CUDA_SUCCESS;
}

template <class Function>
void* pointer(Function* function) {
  return reinterpret_cast<void*>(function);
}

const std::map<std::string, void*>& calls() {
  static const std::map<std::string, void*> table{
      {"cuInit", pointer(init)},
      {"cuDriverGetVersion", pointer(version)},
      {"cuGetErrorName", pointer(error_name)},
      {"cuGetErrorString", pointer(error_string)},
      {"cuDeviceGetCount", pointer(count)},
      {"cuDeviceGet", pointer(get_device)},
      {"cuDeviceGetName", pointer(get_name)},
      {"cuDeviceGetUuid", pointer(get_uuid)},
      {"cuDeviceGetPCIBusId", pointer(get_bus)},
      {"cuDeviceTotalMem", pointer(total)},
      {"cuDeviceGetAttribute", pointer(attribute)},
      {"cuDevicePrimaryCtxRetain", pointer(retain)},
      {"cuCtxPushCurrent", pointer(push)},
      {"cuCtxPopCurrent", pointer(pop)},
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
      {"cuStreamSynchronize", pointer(synchronize)},
      {"cuStreamWriteValue64", pointer(write_value)},
      {"cuStreamWaitValue64", pointer(wait_value)},
      {"cuMemcpyHtoDAsync", pointer(to_device)},
      {"cuMemcpyDtoHAsync", pointer(to_host)},
      {"cuMemcpyDtoDAsync", pointer(on_device)},
  };
  return table;
}

}  // namespace

#undef cuGetProcAddress
extern "C" __attribute__((visibility("default"))) CUresult cuGetProcAddress_v2(
    const char* name, void** out, int, cuuint64_t, CUdriverProcAddressQueryResult* status) {
  const auto found = calls().find(name);
  *out = found == calls().end() ? nullptr : found->second;
  *status = *out == nullptr ? CU_GET_PROC_ADDRESS_SYMBOL_NOT_FOUND : CU_GET_PROC_ADDRESS_SUCCESS;
  return CUDA_SUCCESS;
}
