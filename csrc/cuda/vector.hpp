#pragma once

#include <cstdint>

#include "cuda/host_device.hpp"

namespace flowtrain::cuda {

/// Elements that a thread reads or writes by one access.
template <class T, unsigned kCount>
struct alignas(sizeof(T) * kCount) Vector {
  T at[kCount];
};

/// Pointer that the compiler knows to be to global memory, whose accesses need no check for other
/// memories.
template <class T>
FLOWTRAIN_DEVICE T* global(std::uint64_t address) {
#ifdef __CUDACC__
  return static_cast<T*>(__cvta_global_to_generic(address));
#else
  return reinterpret_cast<T*>(address);
#endif
}

}  // namespace flowtrain::cuda
