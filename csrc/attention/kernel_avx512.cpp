#define KERNELS kernels_avx512
#include "attention/kernel_body.hpp"
