#define KERNELS kernels_avx512
#define ROTATE rotate_avx512
#include "kernels/set.hpp"
