#pragma once

#include <cuda.h>

#include "cuda/float.hpp"
#include "cuda/rotary_kernel.hpp"

namespace flowtrain::cuda {

/// Enqueues a rotation of queries and keys on a stream, by one kernel.
///
/// Errors: CudaError; BadArgument for an address that is not aligned to its dtype.
void rotate(int device, const RotaryTask& task, Float dtype, Float angle_dtype, CUstream stream);

/// Launches the kernel in the current context.
void launch_rotation(CUstream stream, const RotaryTask& task, Float dtype, Float angle_dtype);

}  // namespace flowtrain::cuda
