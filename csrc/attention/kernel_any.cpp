#define KERNELS kernels_any
#include "attention/kernel_body.hpp"
