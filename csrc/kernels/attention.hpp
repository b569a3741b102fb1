#pragma once

#include <cstdint>
#include <span>

#include "kernels/rows.hpp"

namespace flowtrain::kernels {

/// Sizes and options of the attention of a row.
struct Attention {
  std::span<const std::int64_t> lengths;  ///< Tokens of each document.
  std::int64_t heads;                     ///< A multiple of kv_heads.
  std::int64_t kv_heads;
  std::int64_t head_dim;
  float scale;
  bool causal;

  std::int64_t tokens() const;
  std::int64_t longest() const;
};

/// Attention of each document to itself, in float32 on one core.
///
/// The scores of a document stay in the cache: this is for short documents, of which a call of a
/// general kernel spends more time on its preparation than on the scores.
///
/// Memory:  scratch of the longest document, freed at the end.
/// Threads: none.
/// Errors:  std::bad_alloc.
void attention(const Attention& call, Rows<const float> q, Rows<const float> k, Rows<const float> v,
               Rows<float> out, float* log_sums);

/// Gradients of q, k and v.
///
/// `log_sums` has shape [heads, tokens], as `attention` has written it: the logarithm of the sum of
/// the exponentials of each token's scores. The scores are computed again from it.
void attention_backward(const Attention& call, Rows<const float> q, Rows<const float> k,
                        Rows<const float> v, Rows<const float> out, const float* log_sums,
                        Rows<const float> of_out, Rows<float> of_q, Rows<float> of_k,
                        Rows<float> of_v);

}  // namespace flowtrain::kernels
