#define KERNELS kernels_avx2
#define ROTATE rotate_avx2
#include "kernels/set.hpp"
