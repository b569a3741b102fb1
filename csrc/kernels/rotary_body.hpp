// Rotary positions; see set.hpp. Compiled without fused multiply-add, for the results of torch to
// the last bit: towers compute them in float32 even if the model is in float64.
#pragma once

#include "kernels/lanes.hpp"

namespace flowtrain::kernels {
namespace {

/// `low` and `high` belong to the halves of the result, and `sign` to both.
void turn_head(const float* x, const float* cos, const float* low, const float* high, float sign,
               float* out, std::int64_t half) {
  const float* other = x + half;
  std::int64_t i = 0;
  for (; i + kLanes <= half; i += kLanes) {
    const Vector a = anywhere(x + i), b = anywhere(other + i);
    anywhere(out + i) = a * anywhere(cos + i) - sign * (b * anywhere(low + i));
    anywhere(out + half + i) = b * anywhere(cos + half + i) + sign * (a * anywhere(high + i));
  }
  for (; i < half; ++i) {
    out[i] = x[i] * cos[i] - sign * (other[i] * low[i]);
    out[half + i] = other[i] * cos[half + i] + sign * (x[i] * high[i]);
  }
}

}  // namespace

void ROTATE(const Rotation& r) {
  const std::int64_t half = r.head_dim / 2;
  for (std::int64_t token = 0; token < r.tokens; ++token) {
    const float* cos = r.cos + token * r.head_dim;
    const float* sin = r.sin + token * r.head_dim;
    // Values return between the halves, so that the halves of the sine change places.
    const float* low = r.back ? sin + half : sin;
    const float* high = r.back ? sin : sin + half;
    for (std::int64_t head = 0; head < r.heads; ++head) {
      turn_head(r.x.data + head * r.x.head_stride + token * r.x.token_stride, cos, low, high,
                r.back ? -1.0f : 1.0f,
                r.out.data + head * r.out.head_stride + token * r.out.token_stride, half);
    }
  }
}

}  // namespace flowtrain::kernels
