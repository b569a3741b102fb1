#pragma once

#include <cuda.h>

#include <cstddef>

namespace flowtrain::cuda {

/// Enqueue a copy on a stream of `device`. Both sides must live, and be left alone, until the
/// stream has passed it. Host memory that is not registered is staged by the driver, and the call
/// may then wait.
///
/// Errors: CudaError.
void copy_to_device(int device, CUdeviceptr target, const void* source, std::size_t bytes,
                    CUstream stream);
void copy_to_host(int device, void* target, CUdeviceptr source, std::size_t bytes, CUstream stream);
void copy_on_device(int device, CUdeviceptr target, CUdeviceptr source, std::size_t bytes,
                    CUstream stream);

/// Waits until the stream has done all that was enqueued before.
///
/// Errors: CudaError, also for what an earlier call of the stream did wrong.
void synchronize(int device, CUstream stream);

}  // namespace flowtrain::cuda
