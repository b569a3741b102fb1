#pragma once

#include <cuda.h>

#include <cstddef>

namespace flowtrain::cuda {

/// Enqueues a copy on a stream of `device`. Keep both sides alive and unchanged until the copy is
/// done. The driver stages host memory that is not registered, and the call may then block.
///
/// Errors: CudaError.
void copy_to_device(int device, CUdeviceptr target, const void* source, std::size_t bytes,
                    CUstream stream);
void copy_to_host(int device, void* target, CUdeviceptr source, std::size_t bytes, CUstream stream);
void copy_on_device(int device, CUdeviceptr target, CUdeviceptr source, std::size_t bytes,
                    CUstream stream);

/// Waits until all work enqueued on the stream is done.
///
/// Errors: CudaError, also for errors of earlier asynchronous work.
void synchronize(int device, CUstream stream);

}  // namespace flowtrain::cuda
