#define KERNELS kernels_avx2
#include "kernels/set.hpp"
