#define KERNELS kernels_any
#include "kernels/set.hpp"
