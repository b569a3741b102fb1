#define ROTATE rotate_avx2
#include "kernels/rotary_body.hpp"
