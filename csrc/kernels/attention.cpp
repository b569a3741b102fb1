#include "kernels/attention.hpp"

#include <algorithm>
#include <memory>
#include <new>
#include <numeric>

#include "kernels/kernels.hpp"

namespace flowtrain::kernels {
namespace {

struct Free {
  void operator()(float* memory) const { ::operator delete[](memory, kAlignment); }
  static constexpr std::align_val_t kAlignment{4 * kLanes};
};

/// Runs a kernel for each document, with pointers at its first token.
template <class Kernel, class At>
void each(const Attention& call, Kernel kernel, At document_at) {
  const auto floats = static_cast<std::size_t>(scratch_floats(call.longest(), call.head_dim));
  const std::unique_ptr<float[], Free> scratch(
      static_cast<float*>(::operator new[](floats * sizeof(float), Free::kAlignment)));
  std::int64_t first = 0;
  for (const std::int64_t length : call.lengths) {
    Document document = document_at(first);
    document.length = length;
    document.heads = call.heads;
    document.kv_heads = call.kv_heads;
    document.head_dim = call.head_dim;
    document.scale = call.scale;
    document.causal = call.causal;
    document.log_sums_stride = call.tokens();
    kernel(document, scratch.get());
    first += length;
  }
}

template <class Float>
Rows<Float> from(Rows<Float> rows, std::int64_t token) {
  return {rows.data + token * rows.token_stride, rows.head_stride, rows.token_stride};
}

}  // namespace

std::int64_t Attention::tokens() const {
  return std::accumulate(lengths.begin(), lengths.end(), std::int64_t{0});
}

std::int64_t Attention::longest() const {
  return lengths.empty() ? 0 : *std::max_element(lengths.begin(), lengths.end());
}

void attention(const Attention& call, Rows<const float> q, Rows<const float> k, Rows<const float> v,
               Rows<float> out, float* log_sums) {
  each(call, supported().attention, [&](std::int64_t token) {
    Document document{};
    document.q = from(q, token);
    document.k = from(k, token);
    document.v = from(v, token);
    document.to_out = from(out, token);
    document.log_sums = log_sums + token;
    return document;
  });
}

void attention_backward(const Attention& call, Rows<const float> q, Rows<const float> k,
                        Rows<const float> v, Rows<const float> out, const float* log_sums,
                        Rows<const float> of_out, Rows<float> of_q, Rows<float> of_k,
                        Rows<float> of_v) {
  each(call, supported().attention_backward, [&](std::int64_t token) {
    Document document{};
    document.q = from(q, token);
    document.k = from(k, token);
    document.v = from(v, token);
    document.out = from(out, token);
    document.of_out = from(of_out, token);
    document.of_q = from(of_q, token);
    document.of_k = from(of_k, token);
    document.of_v = from(of_v, token);
    document.log_sums = const_cast<float*>(log_sums) + token;
    return document;
  });
}

}  // namespace flowtrain::kernels
