#define KERNELS kernels_any
#define ROTATE rotate_any
#include "kernels/set.hpp"
