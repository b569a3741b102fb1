#define ROTATE rotate_avx512
#include "kernels/rotary_body.hpp"
