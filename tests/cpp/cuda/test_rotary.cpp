// The kernel that rotates queries and keys, compiled for the host, on random layouts.

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <random>
#include <vector>

#include "block_runner.hpp"
#include "check.hpp"
#include "cuda/rotary_kernel.hpp"

namespace cuda = flowtrain::cuda;
using cuda::Bfloat16;

namespace {

constexpr int kLayouts = 300;

template <class T>
struct Heads {
  std::vector<T> from, to;
  cuda::RotaryHeads given{};

  /// `heads` of each token, or tokens of each head, with a gap between them.
  Heads(std::mt19937_64& random, unsigned tokens, unsigned heads, unsigned head_dim,
        unsigned vector) {
    const auto padded = [&] {
      return static_cast<std::int64_t>(head_dim + vector * (random() % 3));
    };
    const auto strides = [&](std::int64_t& of_token, std::int64_t& of_head) {
      const std::int64_t inner = padded();
      const bool tokens_first = random() % 2 == 0;
      (tokens_first ? of_head : of_token) = inner;
      (tokens_first ? of_token : of_head) = inner * (tokens_first ? heads : tokens);
      return static_cast<std::size_t>(inner * tokens * heads);
    };
    from.resize(strides(given.from_token, given.from_head));
    to.resize(strides(given.to_token, given.to_head));
    for (T& value : from) {
      cuda::round_to(value, std::uniform_real_distribution<float>(-4, 4)(random));
    }
    given.from = reinterpret_cast<std::uint64_t>(from.data());
    given.to = reinterpret_cast<std::uint64_t>(to.data());
    given.heads = heads;
  }
};

/// Whether the kernel rotates as a plain loop in float64 does, to the rounding of the result.
template <class T, class Angle, unsigned kVector, bool kWrong = false>
bool same(std::uint64_t seed) {
  std::mt19937_64 random(seed);
  const unsigned tokens = 1 + random() % 7, half = kVector * (1 + random() % 3);
  Heads<T> q(random, tokens, 1 + random() % 6, 2 * half, kVector);
  Heads<T> k(random, tokens, 1 + random() % 3, 2 * half, kVector);
  std::vector<Angle> cos(std::size_t{tokens} * 2 * half), sin(cos.size());
  for (auto* values : {&cos, &sin}) {
    for (Angle& value : *values) {
      cuda::round_to(value, std::uniform_real_distribution<float>(-1, 1)(random));
    }
  }
  const bool back = random() % 2 == 0;
  const cuda::RotaryTask task{q.given,
                              k.given,
                              reinterpret_cast<std::uint64_t>(cos.data()),
                              reinterpret_cast<std::uint64_t>(sin.data()),
                              tokens,
                              half,
                              back};
  BlockRunner runner(seed, static_cast<unsigned>(1 + random() % 40));
  runner.run(tokens,
             [&](const auto& thread) { cuda::rotate<T, Angle, kVector, kWrong>(thread, task); });
  bool equal = true;
  for (Heads<T>* x : {&q, &k}) {
    for (unsigned token = 0; token < tokens; ++token) {
      for (unsigned head = 0; head < x->given.heads; ++head) {
        const T* from = x->from.data() + token * x->given.from_token + head * x->given.from_head;
        const T* to = x->to.data() + token * x->given.to_token + head * x->given.to_head;
        for (unsigned i = 0; i < half; ++i) {
          const auto angle = [&](const std::vector<Angle>& of, unsigned at) {
            return double{cuda::to_float(of[std::size_t{token} * 2 * half + at])};
          };
          const double a = cuda::to_float(from[i]), b = cuda::to_float(from[half + i]);
          // The backward pass is the transposed matrix.
          const double low = back ? a * angle(cos, i) + b * angle(sin, half + i)
                                  : a * angle(cos, i) - b * angle(sin, i);
          const double high = back ? b * angle(cos, half + i) - a * angle(sin, i)
                                   : b * angle(cos, half + i) + a * angle(sin, half + i);
          const double unit = sizeof(T) == 2 ? 0x1p-8 : 0x1p-22;
          equal &= std::abs(cuda::to_float(to[i]) - low) <= 8 * unit;
          equal &= std::abs(cuda::to_float(to[half + i]) - high) <= 8 * unit;
        }
      }
    }
  }
  return equal;
}

}  // namespace

int main() {
  int seen = 0;
  for (std::uint64_t seed = 0; seed < kLayouts; ++seed) {
    CHECK((same<float, float, 4>(seed)));
    CHECK((same<Bfloat16, float, 8>(seed)));
    CHECK((same<Bfloat16, Bfloat16, 1>(seed)));
    seen += same<float, float, 1, true>(seed) ? 0 : 1;
  }
  CHECK(seen > kLayouts / 3);  // Half of them rotate back.
}
