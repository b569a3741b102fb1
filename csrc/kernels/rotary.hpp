#pragma once

#include <cstdint>

#include "kernels/rows.hpp"

namespace flowtrain::kernels {

/// Rotary positions of the heads of packed tokens, in float32.
///
/// With halves a and b of a head, the result is (a cos - b sin, b cos + a sin). `back` rotates by
/// the opposite angles, which is the gradient.
struct Rotation {
  std::int64_t tokens;
  std::int64_t heads;
  std::int64_t head_dim;  ///< Even.
  Rows<const float> x;
  const float* cos;  ///< Of shape [tokens, head_dim], as `sin`.
  const float* sin;
  Rows<float> out;
  bool back;
};

}  // namespace flowtrain::kernels
