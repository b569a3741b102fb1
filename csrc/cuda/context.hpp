#pragma once

#include <cuda.h>

#include <string>

namespace flowtrain::cuda {

/// Makes a device's primary context, which torch and the CUDA runtime use too, current in the
/// calling thread. The destructor restores the context that was current before.
///
/// Memory:   a context is retained once per process and device, and never released, since other
///           users of the device in this process share it.
/// Threads:  any; the current context is a property of the thread.
/// Progress: the first use of a device makes its context, which takes tenths of a second.
/// Ordering: none.
/// Errors:   CudaError; BadArgument if there is no such device.
class ContextScope {
 public:
  explicit ContextScope(int device);
  ~ContextScope();
  ContextScope(const ContextScope&) = delete;
  ContextScope& operator=(const ContextScope&) = delete;
};

/// Handle of a device.
///
/// Errors: BadArgument if there is no such device.
CUdevice device_handle(int device);

/// Name of a device in messages, e.g. `device 0`.
std::string device_text(int device);

}  // namespace flowtrain::cuda
