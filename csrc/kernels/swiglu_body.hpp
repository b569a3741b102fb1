// SwiGLU and its gradients; see set.hpp.
#pragma once

#include "kernels/functions.hpp"

namespace flowtrain::kernels {
namespace {

/// 1 / (1 + e^-x), from the exponential of a negative number, which does not overflow.
Vector sigmoid(Vector x) {
  const auto is_negative = x < Vector{};
  const Vector e = exponential(is_negative ? x : -x);
  return (is_negative ? e : Vector{} + 1.0f) / (e + 1.0f);
}

/// Calls `compute` for the vectors of `count` values, the last of which is filled up with zeros.
///
/// `inputs` and `outputs` are arrays of pointers; `compute` takes as many vectors as there are
/// inputs and fills as many as there are outputs.
template <int kInputs, int kOutputs, class Compute>
void each_vector(std::int64_t count, const float* const (&inputs)[kInputs],
                 float* const (&outputs)[kOutputs], Compute compute) {
  std::int64_t i = 0;
  Vector in[kInputs], out[kOutputs];
  for (; i + kLanes <= count; i += kLanes) {
    for (int n = 0; n < kInputs; ++n) in[n] = anywhere(inputs[n] + i);
    compute(in, out);
    for (int n = 0; n < kOutputs; ++n) anywhere(outputs[n] + i) = out[n];
  }
  if (i == count) return;
  for (int n = 0; n < kInputs; ++n) {
    in[n] = Vector{};
    for (std::int64_t j = i; j < count; ++j) in[n][j - i] = inputs[n][j];
  }
  compute(in, out);
  for (int n = 0; n < kOutputs; ++n)
    for (std::int64_t j = i; j < count; ++j) outputs[n][j] = out[n][j - i];
}

void gated(const SwiGlu& s) {
  each_vector<2, 1>(s.count, {s.gate, s.up}, {s.out},
                    [](const Vector* in, Vector* out) { out[0] = in[0] * sigmoid(in[0]) * in[1]; });
}

void gated_backward(const SwiGluBackward& s) {
  each_vector<3, 2>(s.count, {s.gate, s.up, s.of_out}, {s.of_gate, s.of_up},
                    [](const Vector* in, Vector* out) {
                      const Vector gate = in[0], up = in[1], of_out = in[2];
                      const Vector share = sigmoid(gate);
                      out[0] = of_out * up * share * (1.0f + gate * (1.0f - share));
                      out[1] = of_out * gate * share;
                    });
}

}  // namespace
}  // namespace flowtrain::kernels
