#include <cmath>
#include <cstdint>
#include <random>
#include <vector>

#include "check.hpp"
#include "kernels/kernels.hpp"

using namespace flowtrain::kernels;

namespace {

using Floats = std::vector<float>;

constexpr std::int64_t kLength = 37, kDim = 20;

/// Three arrays of normal numbers.
struct Drawn {
  Floats a, b, c;

  explicit Drawn(std::int64_t count) {
    std::mt19937 random(5);
    std::normal_distribution<float> normal;
    for (Floats* drawn : {&a, &b, &c}) {
      drawn->resize(static_cast<std::size_t>(count));
      for (float& value : *drawn) value = normal(random);
    }
  }
};

/// A causal document of two heads that share keys and values, and what the kernels write.
struct Computed {
  Floats q, k, v, of_out;
  Floats out = Floats(2 * kLength * kDim), log_sums = Floats(2 * kLength);
  Floats of_q = Floats(2 * kLength * kDim);
  Floats of_k = Floats(kLength * kDim), of_v = Floats(kLength * kDim);

  explicit Computed(Kernels kernels) {
    std::mt19937 random(3);
    std::normal_distribution<float> normal;
    for (Floats* drawn : {&q, &of_out}) drawn->resize(2 * kLength * kDim);
    for (Floats* drawn : {&k, &v}) drawn->resize(kLength * kDim);
    for (Floats* drawn : {&q, &k, &v, &of_out})
      for (float& value : *drawn) value = normal(random);
    const auto rows = [](auto& values) { return Rows{values.data(), kLength * kDim, kDim}; };
    const auto read = [](const Floats& values) {
      return Rows<const float>{values.data(), kLength * kDim, kDim};
    };
    const Document document{kLength,    2,          1,          kDim,
                            0.3f,       true,       read(q),    read(k),
                            read(v),    read(out),  rows(out),  read(of_out),
                            rows(of_q), rows(of_k), rows(of_v), log_sums.data(),
                            kLength};
    const auto floats = static_cast<std::size_t>(scratch_floats(kLength, kDim));
    // Garbage in the scratch must not reach a result.
    Floats memory(floats + kLanes, std::nanf(""));
    const auto address = reinterpret_cast<std::uintptr_t>(memory.data());
    float* scratch = memory.data() + (64 - address % 64) % 64 / sizeof(float);
    kernels.attention(document, scratch);
    kernels.attention_backward(document, scratch);
  }
};

/// Weight of each token in the sum of another, in float64.
std::vector<double> weights_of(const Computed& c, std::int64_t head) {
  std::vector<double> weights(kLength * kLength);
  for (std::int64_t t = 0; t < kLength; ++t) {
    double total = 0.0;
    for (std::int64_t s = 0; s <= t; ++s) {
      double score = 0.0;
      for (std::int64_t i = 0; i < kDim; ++i)
        score += double(c.q[(head * kLength + t) * kDim + i]) * c.k[s * kDim + i];
      total += weights[t * kLength + s] = std::exp(score * 0.3f);
    }
    for (std::int64_t s = 0; s <= t; ++s) weights[t * kLength + s] /= total;
  }
  return weights;
}

bool near(const Floats& values, const std::vector<double>& expected) {
  for (std::size_t i = 0; i < values.size(); ++i)
    if (!(std::abs(values[i] - expected[i]) < 2e-5)) return false;
  return true;
}

void attention_is_that_of_the_definition(Kernels kernels) {
  const Computed c(kernels);
  std::vector<double> out(c.out.size()), of_q(c.of_q.size()), of_k(c.of_k.size()),
      of_v(c.of_v.size());
  for (std::int64_t head = 0; head < 2; ++head) {
    const std::vector<double> weights = weights_of(c, head);
    const std::int64_t first = head * kLength * kDim;
    for (std::int64_t t = 0; t < kLength; ++t) {
      const std::int64_t row = first + t * kDim;
      std::vector<double> of_weights(kLength);
      double mean = 0.0;
      for (std::int64_t s = 0; s <= t; ++s) {
        const double weight = weights[t * kLength + s];
        for (std::int64_t i = 0; i < kDim; ++i) {
          out[row + i] += weight * c.v[s * kDim + i];
          of_v[s * kDim + i] += weight * c.of_out[row + i];
          of_weights[s] += double(c.of_out[row + i]) * c.v[s * kDim + i];
        }
        mean += weight * of_weights[s];
      }
      for (std::int64_t s = 0; s <= t; ++s) {
        const double of_score = weights[t * kLength + s] * (of_weights[s] - mean) * 0.3f;
        for (std::int64_t i = 0; i < kDim; ++i) {
          of_q[row + i] += of_score * c.k[s * kDim + i];
          of_k[s * kDim + i] += of_score * c.q[row + i];
        }
      }
    }
  }
  CHECK(near(c.out, out));
  CHECK(near(c.of_q, of_q));
  CHECK(near(c.of_k, of_k));
  CHECK(near(c.of_v, of_v));
}

/// Rows that are no whole vectors, more than are added up together, after the definition.
void norms_are_those_of_the_definition(Kernels kernels) {
  constexpr std::int64_t kRows = 67;
  const Drawn d(kRows * kDim);
  const Floats& weight = d.c;
  Floats scales(kRows), out(d.a.size()), of_x(d.a.size()), of_weight(kDim), scratch(kDim);
  kernels.rms_norm({kRows, kDim, 1e-6f, d.a.data(), weight.data(), scales.data(), out.data()});
  kernels.rms_norm_backward({kRows, kDim, d.a.data(), weight.data(), scales.data(), d.b.data(),
                             of_x.data(), of_weight.data(), scratch.data()});
  std::vector<double> expected(out.size()), expected_of_x(out.size()), expected_of_weight(kDim);
  for (std::int64_t row = 0; row < kRows; ++row) {
    const float *x = &d.a[row * kDim], *of_out = &d.b[row * kDim];
    double squares = 0.0, products = 0.0;
    for (std::int64_t i = 0; i < kDim; ++i) {
      squares += double(x[i]) * x[i];
      products += double(of_out[i]) * weight[i] * x[i];
    }
    const double scale = 1.0 / std::sqrt(squares / kDim + 1e-6f);
    for (std::int64_t i = 0; i < kDim; ++i) {
      expected[row * kDim + i] = x[i] * scale * weight[i];
      expected_of_weight[i] += of_out[i] * x[i] * scale;
      expected_of_x[row * kDim + i] =
          of_out[i] * weight[i] * scale - x[i] * products * scale * scale * scale / kDim;
    }
  }
  CHECK(near(out, expected));
  CHECK(near(of_x, expected_of_x));
  CHECK(near(of_weight, expected_of_weight));
}

void rotations_are_those_of_the_definition(Kernels kernels) {
  constexpr std::int64_t kHalf = kDim / 2, kHeads = 2;
  const Drawn d(kHeads * kLength * kDim);
  Floats turned(d.a.size()), back(d.a.size());
  const auto turn = [&](const Floats& x, Floats& out, bool reverse) {
    const std::int64_t of_head = kLength * kDim;
    kernels.rotate({kLength,
                    kHeads,
                    kDim,
                    {x.data(), of_head, kDim},
                    d.b.data(),
                    d.c.data(),
                    {out.data(), of_head, kDim},
                    reverse});
  };
  turn(d.a, turned, false);
  turn(d.a, back, true);
  std::vector<double> expected(turned.size()), expected_back(turned.size());
  for (std::int64_t row = 0; row < kHeads * kLength; ++row) {
    const float* x = &d.a[row * kDim];
    const float *cos = &d.b[row % kLength * kDim], *sin = &d.c[row % kLength * kDim];
    for (std::int64_t i = 0, j = kHalf; i < kHalf; ++i, ++j) {
      expected[row * kDim + i] = double(x[i]) * cos[i] - double(x[j]) * sin[i];
      expected[row * kDim + j] = double(x[j]) * cos[j] + double(x[i]) * sin[j];
      expected_back[row * kDim + i] = double(x[i]) * cos[i] + double(x[j]) * sin[j];
      expected_back[row * kDim + j] = double(x[j]) * cos[j] - double(x[i]) * sin[i];
    }
  }
  CHECK(near(turned, expected));
  CHECK(near(back, expected_back));
}

/// Numbers that fill no whole vectors, after the definition.
void gates_are_those_of_the_definition(Kernels kernels) {
  constexpr std::int64_t kCount = 83;
  const Drawn d(kCount);
  Floats out(kCount), of_gate(kCount), of_up(kCount);
  kernels.swiglu({kCount, d.a.data(), d.b.data(), out.data()});
  kernels.swiglu_backward(
      {kCount, d.a.data(), d.b.data(), d.c.data(), of_gate.data(), of_up.data()});
  std::vector<double> expected, expected_of_gate, expected_of_up;
  for (std::int64_t i = 0; i < kCount; ++i) {
    const double gate = d.a[i], share = 1.0 / (1.0 + std::exp(-gate));
    expected.push_back(gate * share * d.b[i]);
    expected_of_gate.push_back(d.c[i] * d.b[i] * (share + gate * share * (1.0 - share)));
    expected_of_up.push_back(d.c[i] * gate * share);
  }
  CHECK(near(out, expected));
  CHECK(near(of_gate, expected_of_gate));
  CHECK(near(of_up, expected_of_up));
}

void results_are_those_of_the_definition(Kernels kernels) {
  attention_is_that_of_the_definition(kernels);
  norms_are_those_of_the_definition(kernels);
  rotations_are_those_of_the_definition(kernels);
  gates_are_those_of_the_definition(kernels);
}

}  // namespace

int main() {
  results_are_those_of_the_definition(kernels_any());
#if defined(__x86_64__)
  if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma"))
    results_are_those_of_the_definition(kernels_avx2());
  if (__builtin_cpu_supports("avx512f")) results_are_those_of_the_definition(kernels_avx512());
#endif
}
