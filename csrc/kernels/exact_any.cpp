#define ROTATE rotate_any
#include "kernels/rotary_body.hpp"
