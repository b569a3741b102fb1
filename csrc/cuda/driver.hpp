#pragma once

#include <cuda.h>
#include <cudaTypedefs.h>

#include <string>

#include "base/error.hpp"

namespace flowtrain::cuda {

/// Entry points of the driver, each with the interface version to look up. A line declares, for
/// example, the member `MemCreate` for `cuMemCreate`.
#define FLOWTRAIN_CUDA_CALLS(X)          \
  X(Init, 2000)                          \
  X(DriverGetVersion, 2020)              \
  X(GetErrorName, 6000)                  \
  X(GetErrorString, 6000)                \
  X(DeviceGetCount, 2000)                \
  X(DeviceGet, 2000)                     \
  X(DeviceGetName, 2000)                 \
  X(DeviceGetUuid, 11040)                \
  X(DeviceGetPCIBusId, 4010)             \
  X(DeviceTotalMem, 3020)                \
  X(DeviceGetAttribute, 2000)            \
  X(DevicePrimaryCtxRetain, 7000)        \
  X(CtxPushCurrent, 4000)                \
  X(CtxPopCurrent, 4000)                 \
  X(MemHostRegister, 6050)               \
  X(MemHostUnregister, 4000)             \
  X(MemHostGetDevicePointer, 3020)       \
  X(MemGetAllocationGranularity, 10020)  \
  X(MemCreate, 10020)                    \
  X(MemRelease, 10020)                   \
  X(MemExportToShareableHandle, 10020)   \
  X(MemImportFromShareableHandle, 10020) \
  X(MemAddressReserve, 10020)            \
  X(MemAddressFree, 10020)               \
  X(MemMap, 10020)                       \
  X(MemUnmap, 10020)                     \
  X(MemSetAccess, 10020)                 \
  X(MemAlloc, 3020)                      \
  X(MemFree, 3020)                       \
  X(MemGetAddressRange, 3020)            \
  X(IpcGetMemHandle, 4010)               \
  X(IpcOpenMemHandle, 11000)             \
  X(IpcCloseMemHandle, 4010)             \
  X(StreamCreate, 2000)                  \
  X(StreamDestroy, 4000)                 \
  X(StreamQuery, 2000)                   \
  X(StreamSynchronize, 2000)             \
  X(StreamWriteValue64, 11070)           \
  X(StreamWaitValue64, 11070)            \
  X(LaunchHostFunc, 10000)               \
  X(MemcpyHtoDAsync, 3020)               \
  X(MemcpyDtoHAsync, 3020)               \
  X(MemcpyDtoDAsync, 3020)

/// Functions of the driver, looked up at run time so that nothing links against libcuda.
struct Driver {
#define FLOWTRAIN_CUDA_MEMBER(name, version) PFN_cu##name##_v##version name = nullptr;
  FLOWTRAIN_CUDA_CALLS(FLOWTRAIN_CUDA_MEMBER)
#undef FLOWTRAIN_CUDA_MEMBER
};

/// The driver, opened and initialised by the first call.
///
/// Errors: CudaError with the text of why_not.
const Driver& driver();

/// Why no device can be used, and what to do; empty if one can. Never throws.
std::string why_not();

/// Version of the driver, e.g. 13000; 0 without one.
int driver_version();

/// Number of usable devices; 0 if why_not has a reason.
int device_count();

/// Throws CudaError, naming the object, the call and the result, if a call failed.
void check(CUresult result, const char* call, const std::string& what);

/// As check, for an allocation: PoolSpace if the device has no such memory left.
void check_memory(CUresult result, const char* call, const std::string& what);

/// A checked call of the table: FLOWTRAIN_CUDA(MemCreate, "segment", &handle, ...).
#define FLOWTRAIN_CUDA(name, what, ...) \
  ::flowtrain::cuda::check(::flowtrain::cuda::driver().name(__VA_ARGS__), "cu" #name, what)

}  // namespace flowtrain::cuda
