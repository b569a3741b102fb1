#define KERNELS kernels_avx2
#include "attention/kernel_body.hpp"
