#pragma once

#include <cuda.h>

#include <string>

namespace flowtrain::cuda {

/// Makes a device's primary context, the one that torch and the runtime use, the calling
/// thread's current one, and restores what was current at the end of the block.
///
/// Memory:   a context is retained once a process and device, and never released: whoever else
///           uses the device in this process shares it.
/// Threads:  any; the current context is a property of the thread.
/// Progress: the first use of a device makes its context, which takes tenths of a second.
/// Ordering: none.
/// Errors:   CudaError; a number that no device has is a BadArgument.
class ContextScope {
 public:
  explicit ContextScope(int device);
  ~ContextScope();
  ContextScope(const ContextScope&) = delete;
  ContextScope& operator=(const ContextScope&) = delete;
};

/// The handle of device number `device`.
///
/// Errors: BadArgument for a number that no device has.
CUdevice device_handle(int device);

/// How a device is called in messages, e.g. `device 0`.
std::string device_text(int device);

/// The process that made a handle: CUDA does not survive a fork, so a child must leave alone
/// what it inherited.
class MadeHere {
 public:
  MadeHere();
  explicit operator bool() const;

 private:
  int pid_;
};

}  // namespace flowtrain::cuda
