#include "kernels/kernels.hpp"

namespace flowtrain::kernels {

Kernels supported() {
#if defined(__x86_64__)
  if (__builtin_cpu_supports("avx512f")) return kernels_avx512();
  if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma")) return kernels_avx2();
#endif
  return kernels_any();
}

}  // namespace flowtrain::kernels
