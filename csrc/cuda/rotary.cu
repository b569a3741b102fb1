#include <cuda_runtime.h>

#include <algorithm>
#include <cstdint>
#include <string>

#include "base/error.hpp"
#include "cuda/rotary.hpp"

namespace flowtrain::cuda {
namespace {

constexpr unsigned kMostThreads = 256;
constexpr unsigned kWarp = 32;

template <class T, class Angle, unsigned kVector>
__global__ void rotate_kernel(const __grid_constant__ RotaryTask task) {
  rotate<T, Angle, kVector>(DeviceThread(), task);
}

/// Whether all accesses of a task can be of `count` elements.
template <class T, class Angle>
bool allows(const RotaryTask& task, unsigned count) {
  std::uint64_t distances = task.half;
  std::uint64_t addresses = 0;
  for (const RotaryHeads* x : {&task.queries, &task.keys}) {
    distances |=
        static_cast<std::uint64_t>(x->from_token | x->from_head | x->to_token | x->to_head);
    addresses |= x->from | x->to;
  }
  return distances % count == 0 && addresses % (count * sizeof(T)) == 0 &&
         (task.cos | task.sin) % (count * sizeof(Angle)) == 0;
}

template <class T, class Angle, unsigned kVector>
void launch_as(CUstream stream, const RotaryTask& task) {
  const unsigned units = (task.queries.heads + task.keys.heads) * (task.half / kVector);
  const unsigned warps = (units + kWarp - 1) / kWarp;
  const unsigned threads = std::clamp(warps * kWarp, kWarp, kMostThreads);
  rotate_kernel<T, Angle, kVector><<<task.tokens, threads, 0, stream>>>(task);
  if (const cudaError_t error = cudaGetLastError(); error != cudaSuccess) {
    throw CudaError(std::string("rotation: launch of ") + std::to_string(task.tokens) +
                    " blocks: " + cudaGetErrorName(error) + " (" + cudaGetErrorString(error) + ")");
  }
}

template <class T, class Angle>
void launch(CUstream stream, const RotaryTask& task) {
  constexpr unsigned kVector = 16 / sizeof(T);
  if (allows<T, Angle>(task, kVector)) {
    launch_as<T, Angle, kVector>(stream, task);
  } else {
    launch_as<T, Angle, 1>(stream, task);
  }
}

template <class T>
void launch_with(CUstream stream, const RotaryTask& task, Float angle_dtype) {
  switch (angle_dtype) {
    case Float::kFloat32: return launch<T, float>(stream, task);
    case Float::kBfloat16: return launch<T, Bfloat16>(stream, task);
    case Float::kFloat16: return launch<T, Float16>(stream, task);
  }
}

}  // namespace

void launch_rotation(CUstream stream, const RotaryTask& task, Float dtype, Float angle_dtype) {
  switch (dtype) {
    case Float::kFloat32: return launch_with<float>(stream, task, angle_dtype);
    case Float::kBfloat16: return launch_with<Bfloat16>(stream, task, angle_dtype);
    case Float::kFloat16: return launch_with<Float16>(stream, task, angle_dtype);
  }
}

}  // namespace flowtrain::cuda
