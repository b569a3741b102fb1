#pragma once

#include <cstdint>

namespace flowtrain::kernels {

/// RMS norm of rows that lie one behind the other, in float32.
///
/// out = x scale weight, where scale = 1 / sqrt(mean of x^2 + eps) of the row.
struct RmsNorm {
  std::int64_t rows;
  std::int64_t width;  ///< Values of a row and of the weight.
  float eps;
  const float* x;
  const float* weight;
  float* scales;  ///< One for each row.
  float* out;
};

/// Gradients of input and weight; either may be null.
struct RmsNormBackward {
  std::int64_t rows;
  std::int64_t width;
  const float* x;
  const float* weight;
  const float* scales;  ///< As the forward pass has written them.
  const float* of_out;
  float* of_x;
  float* of_weight;
  float* scratch;  ///< `width` values.
};

}  // namespace flowtrain::kernels
