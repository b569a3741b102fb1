#pragma once

#include <bit>
#include <cstdint>
#include <type_traits>

#ifdef __CUDACC__
#include <cuda_bf16.h>
#include <cuda_fp16.h>
#define FLOWTRAIN_DEVICE __device__ __forceinline__
#define FLOWTRAIN_UNROLL _Pragma("unroll")
#else
#define FLOWTRAIN_DEVICE inline
#define FLOWTRAIN_UNROLL
#endif

/// The parts of CUDA that kernels use, in two forms: for the device, and for the host, where tests
/// run the threads of a block as fibers (`tests/cpp/cuda/block_runner.hpp`).
///
/// A kernel is a function template of a `Thread`, which has `block()`, `index()`, `threads()`,
/// `sync()` and `shared()`; it uses nothing else of CUDA.
namespace flowtrain::cuda {

struct Bfloat16 {
  std::uint16_t bits;
};
struct Float16 {
  std::uint16_t bits;
};

FLOWTRAIN_DEVICE float to_float(float value) { return value; }

#ifdef __CUDACC__

FLOWTRAIN_DEVICE float to_float(Bfloat16 value) {
  return __bfloat162float(__ushort_as_bfloat16(value.bits));
}
FLOWTRAIN_DEVICE float to_float(Float16 value) {
  return __half2float(__ushort_as_half(value.bits));
}
FLOWTRAIN_DEVICE void round_to(Bfloat16& out, float value) {
  out.bits = __bfloat16_as_ushort(__float2bfloat16_rn(value));
}
FLOWTRAIN_DEVICE void round_to(Float16& out, float value) {
  out.bits = __half_as_ushort(__float2half_rn(value));
}

/// A thread of a kernel on the device.
struct DeviceThread {
  FLOWTRAIN_DEVICE unsigned block() const { return blockIdx.x; }
  FLOWTRAIN_DEVICE unsigned index() const { return threadIdx.x; }
  FLOWTRAIN_DEVICE unsigned threads() const { return blockDim.x; }
  FLOWTRAIN_DEVICE void sync() const { __syncthreads(); }
  FLOWTRAIN_DEVICE void* shared() const {
    extern __shared__ uint4 memory[];
    return memory;
  }
};

#else

__extension__ using HostHalf = _Float16;

inline float to_float(Bfloat16 value) {
  return std::bit_cast<float>(static_cast<std::uint32_t>(value.bits) << 16);
}
inline float to_float(Float16 value) {
  return static_cast<float>(std::bit_cast<HostHalf>(value.bits));
}
inline void round_to(Bfloat16& out, float value) {
  const auto bits = std::bit_cast<std::uint32_t>(value);
  const bool nan = (bits & 0x7fffffffU) > 0x7f800000U;
  out.bits = nan ? 0x7fff : static_cast<std::uint16_t>((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
}
inline void round_to(Float16& out, float value) {
  out.bits = std::bit_cast<std::uint16_t>(static_cast<HostHalf>(value));
}

#endif

FLOWTRAIN_DEVICE void round_to(float& out, float value) { out = value; }

/// Rounds to nearest, ties to even. A value of the same dtype keeps its bits.
template <class To, class From>
FLOWTRAIN_DEVICE To convert(From value) {
  if constexpr (std::is_same_v<From, To>) {
    return value;
  } else {
    To out;
    round_to(out, to_float(value));
    return out;
  }
}

}  // namespace flowtrain::cuda
