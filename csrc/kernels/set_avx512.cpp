#define KERNELS kernels_avx512
#include "kernels/set.hpp"
