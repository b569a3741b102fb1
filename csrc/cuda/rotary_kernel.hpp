#pragma once

#include <cstdint>

#include "cuda/host_device.hpp"
#include "cuda/vector.hpp"

namespace flowtrain::cuda {

/// Queries or keys, and where their rotation goes. The elements of a head are contiguous; other
/// distances are in elements.
struct RotaryHeads {
  std::uint64_t from;
  std::uint64_t to;
  std::int64_t from_token;
  std::int64_t from_head;
  std::int64_t to_token;
  std::int64_t to_head;
  std::uint32_t heads;
};

/// A rotation of queries and keys by the angles of their tokens.
struct RotaryTask {
  RotaryHeads queries;
  RotaryHeads keys;
  std::uint64_t cos;  // Both have shape [tokens, 2 * half].
  std::uint64_t sin;
  std::uint32_t tokens;
  std::uint32_t half;  // Of the elements of a head.
  bool back;           // By the opposite angles, as in a backward pass.
};

/// Rotates, in float32, one token a block. It needs no barrier: each thread writes elements of its
/// own.
///
/// @tparam T        Dtype of queries and keys.
/// @tparam Angle    Dtype of cosines and sines.
/// @tparam kVector  Elements of an access; all addresses and distances must allow it.
/// @tparam kWrong   The planted fault of a test: the halves of the sine keep their places.
template <class T, class Angle, unsigned kVector, bool kWrong = false, class Thread>
FLOWTRAIN_DEVICE void rotate(const Thread& thread, const RotaryTask& task) {
  using Values = Vector<T, kVector>;
  using Angles = Vector<Angle, kVector>;
  const std::int64_t token = thread.block();
  const unsigned vectors = task.half / kVector;
  const unsigned heads = task.queries.heads + task.keys.heads;
  const auto* cos = global<const Angle>(task.cos) + token * 2 * task.half;
  const auto* sin = global<const Angle>(task.sin) + token * 2 * task.half;
  for (unsigned unit = thread.index(); unit < heads * vectors; unit += thread.threads()) {
    unsigned head = unit / vectors;
    const unsigned at = unit % vectors * kVector;
    const bool is_key = head >= task.queries.heads;
    const RotaryHeads& x = is_key ? task.keys : task.queries;
    if (is_key) head -= task.queries.heads;
    const T* from = global<const T>(x.from) + token * x.from_token + head * x.from_head + at;
    T* to = global<T>(x.to) + token * x.to_token + head * x.to_head + at;
    const Values a = *reinterpret_cast<const Values*>(from);
    const Values b = *reinterpret_cast<const Values*>(from + task.half);
    const Angles cos_a = *reinterpret_cast<const Angles*>(cos + at);
    const Angles cos_b = *reinterpret_cast<const Angles*>(cos + at + task.half);
    const Angles sin_a = *reinterpret_cast<const Angles*>(sin + at);
    const Angles sin_b = *reinterpret_cast<const Angles*>(sin + at + task.half);
    Values low, high;
    FLOWTRAIN_UNROLL
    for (unsigned k = 0; k < kVector; ++k) {
      const float first = to_float(a.at[k]), second = to_float(b.at[k]);
      // Values return between the halves, so that the halves of the sine change places.
      const float of_a = to_float((task.back && !kWrong ? sin_b : sin_a).at[k]);
      const float of_b = to_float((task.back && !kWrong ? sin_a : sin_b).at[k]);
      const float sign = task.back ? -1.0F : 1.0F;
      round_to(low.at[k], first * to_float(cos_a.at[k]) - sign * second * of_a);
      round_to(high.at[k], second * to_float(cos_b.at[k]) + sign * first * of_b);
    }
    *reinterpret_cast<Values*>(to) = low;
    *reinterpret_cast<Values*>(to + task.half) = high;
  }
}

}  // namespace flowtrain::cuda
