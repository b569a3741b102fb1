// RMS norms and their gradients; see set.hpp.
#pragma once

#include "kernels/lanes.hpp"

namespace flowtrain::kernels {
namespace {

void normalize(const RmsNorm& n) {
  const std::int64_t whole = n.width / kLanes * kLanes;
  for (std::int64_t row = 0; row < n.rows; ++row) {
    const float* x = n.x + row * n.width;
    float* out = n.out + row * n.width;
    const float mean = dot(x, x, n.width) / static_cast<float>(n.width);
    const float scale = 1.0f / __builtin_sqrtf(mean + n.eps);
    n.scales[row] = scale;
    std::int64_t i = 0;
    for (; i < whole; i += kLanes)
      anywhere(out + i) = anywhere(x + i) * scale * anywhere(n.weight + i);
    for (; i < n.width; ++i) out[i] = x[i] * scale * n.weight[i];
  }
}

/// Rows whose gradients of the weight are added up before they are added to the rest: one sum over
/// all rows would lose more digits.
constexpr std::int64_t kTogether = 32;

void add_and_clear(float* part, float* total, std::int64_t count) {
  for (std::int64_t i = 0; i < count; ++i) {
    total[i] += part[i];
    part[i] = 0.0f;
  }
}

void normalize_backward(const RmsNormBackward& n) {
  const std::int64_t whole = n.width / kLanes * kLanes;
  for (std::int64_t i = 0; n.of_weight && i < n.width; ++i) n.of_weight[i] = n.scratch[i] = 0.0f;
  for (std::int64_t row = 0; row < n.rows; ++row) {
    const float* x = n.x + row * n.width;
    const float* of_out = n.of_out + row * n.width;
    const float scale = n.scales[row];
    if (n.of_weight) {
      std::int64_t i = 0;
      for (; i < whole; i += kLanes)
        anywhere(n.scratch + i) += anywhere(of_out + i) * (anywhere(x + i) * scale);
      for (; i < n.width; ++i) n.scratch[i] += of_out[i] * (x[i] * scale);
      if ((row + 1) % kTogether == 0) add_and_clear(n.scratch, n.of_weight, n.width);
    }
    if (n.of_x) {
      float* of_x = n.of_x + row * n.width;
      Vector sums = {};
      std::int64_t i = 0;
      for (; i < whole; i += kLanes) {
        const Vector of_normalized = anywhere(of_out + i) * anywhere(n.weight + i);
        anywhere(of_x + i) = of_normalized * scale;
        sums += of_normalized * anywhere(x + i);
      }
      float of_scale = sum(sums);
      for (; i < n.width; ++i) {
        of_x[i] = of_out[i] * n.weight[i] * scale;
        of_scale += of_out[i] * n.weight[i] * x[i];
      }
      const float factor = of_scale * (scale * scale * scale) / static_cast<float>(n.width);
      for (i = 0; i < whole; i += kLanes) anywhere(of_x + i) -= anywhere(x + i) * factor;
      for (; i < n.width; ++i) of_x[i] -= x[i] * factor;
    }
  }
  if (n.of_weight) add_and_clear(n.scratch, n.of_weight, n.width);
}

}  // namespace
}  // namespace flowtrain::kernels
