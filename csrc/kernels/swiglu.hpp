#pragma once

#include <cstdint>

namespace flowtrain::kernels {

/// SwiGLU of values that lie one behind the other, in float32.
///
/// out = silu(gate) up, where silu(x) = x / (1 + e^-x).
struct SwiGlu {
  std::int64_t count;
  const float* gate;
  const float* up;
  float* out;
};

/// Gradients of `gate` and `up`; silu(gate) is computed again.
struct SwiGluBackward {
  std::int64_t count;
  const float* gate;
  const float* up;
  const float* of_out;
  float* of_gate;
  float* of_up;
};

}  // namespace flowtrain::kernels
