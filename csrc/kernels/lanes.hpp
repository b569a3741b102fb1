// Vectors of an instruction set; see set.hpp.
#pragma once

#include <cstdint>

#include "kernels/kernels.hpp"

namespace flowtrain::kernels {
namespace {

typedef float Vector __attribute__((vector_size(4 * kLanes), may_alias));
typedef float Unaligned __attribute__((vector_size(4 * kLanes), may_alias, aligned(4)));
typedef std::int32_t Integers __attribute__((vector_size(4 * kLanes)));

constexpr float kMinusInfinity = -__builtin_inff();
constexpr Integers kLane = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15};

Vector& at(float* data) { return *reinterpret_cast<Vector*>(data); }
const Vector& at(const float* data) { return *reinterpret_cast<const Vector*>(data); }

const Unaligned& anywhere(const float* data) { return *reinterpret_cast<const Unaligned*>(data); }
Unaligned& anywhere(float* data) { return *reinterpret_cast<Unaligned*>(data); }

/// Combines the lanes of a vector in a tree: one chain of 16 additions takes four times as long.
template <class Combine>
float reduced(Vector x, Combine combine) {
  for (int half = kLanes / 2; half > 0; half /= 2)
    x = combine(x, __builtin_shuffle(x, kLane ^ half));
  return x[0];
}

Vector larger(Vector a, Vector b) { return a > b ? a : b; }
float sum(Vector x) {
  return reduced(x, [](Vector a, Vector b) { return a + b; });
}

void copy(const float* from, float* to, std::int64_t count) {
  std::int64_t i = 0;
  for (; i + kLanes <= count; i += kLanes) anywhere(to + i) = anywhere(from + i);
  for (; i < count; ++i) to[i] = from[i];
}

float dot(const float* a, const float* b, std::int64_t count) {
  Vector sums = {};
  std::int64_t i = 0;
  for (; i + kLanes <= count; i += kLanes) sums += anywhere(a + i) * anywhere(b + i);
  float total = sum(sums);
  for (; i < count; ++i) total += a[i] * b[i];
  return total;
}

}  // namespace
}  // namespace flowtrain::kernels
