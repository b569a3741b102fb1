#pragma once

#include <cstdint>

#include "kernels/attention.hpp"
#include "kernels/rms_norm.hpp"
#include "kernels/rotary.hpp"
#include "kernels/swiglu.hpp"

namespace flowtrain::kernels {

/// One document of an attention, for the kernels of one instruction set. Pointers are at its first
/// token.
struct Document {
  std::int64_t length;
  std::int64_t heads;
  std::int64_t kv_heads;
  std::int64_t head_dim;
  float scale;
  bool causal;
  Rows<const float> q, k, v;
  Rows<const float> out;  ///< Of backward.
  Rows<float> to_out;     ///< Of forward.
  Rows<const float> of_out;
  Rows<float> of_q, of_k, of_v;
  float* log_sums;
  std::int64_t log_sums_stride;  ///< Of a head.
};

/// Kernels of an instruction set.
struct Kernels {
  void (*attention)(const Document&, float* scratch);
  void (*attention_backward)(const Document&, float* scratch);
  void (*rms_norm)(const RmsNorm&);
  void (*rms_norm_backward)(const RmsNormBackward&);
  void (*rotate)(const Rotation&);
  void (*swiglu)(const SwiGlu&);
  void (*swiglu_backward)(const SwiGluBackward&);
};

/// Those of the best instruction set that this processor has.
Kernels supported();

Kernels kernels_avx512();
Kernels kernels_avx2();
Kernels kernels_any();

void rotate_avx512(const Rotation& call);
void rotate_avx2(const Rotation& call);
void rotate_any(const Rotation& call);

constexpr std::int64_t kLanes = 16;

constexpr std::int64_t padded(std::int64_t size) { return (size + kLanes - 1) / kLanes * kLanes; }

/// Floats of scratch for a document.
constexpr std::int64_t scratch_floats(std::int64_t length, std::int64_t head_dim) {
  const std::int64_t rows = length * padded(head_dim);
  const std::int64_t turned = head_dim * padded(length);
  return 6 * rows + 2 * turned + 2 * length * padded(length);
}

}  // namespace flowtrain::kernels
