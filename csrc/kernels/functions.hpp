// Exponential and logarithm of vectors; see set.hpp.
#pragma once

#include "kernels/lanes.hpp"

namespace flowtrain::kernels {
namespace {

/// e^x for x <= 0, relative error below 2e-7.
/// Source: the polynomial of Cephes' expf, after x = n ln 2 + r.
Vector exponential(Vector x) {
  const Vector lowest = Vector{} - 87.0f;
  const auto is_tiny = x < lowest;
  x = is_tiny ? lowest : x;
  const float round = 12582912.0f;  // 1.5 * 2^23: adding it leaves an integer.
  const Vector n = (x * 1.44269504088896341f + round) - round;
  const Vector r = (x - n * 0.693359375f) + n * 2.12194440e-4f;
  Vector p = r * 1.9875691500e-4f + 1.3981999507e-3f;
  p = p * r + 8.3334519073e-3f;
  p = p * r + 4.1665795894e-2f;
  p = p * r + 1.6666665459e-1f;
  p = p * r + 5.0000001201e-1f;
  p = p * r * r + r + 1.0f;
  const Integers power = (__builtin_convertvector(n, Integers) + 127) << 23;
  p *= (Vector)power;  // The bits, not the values.
  return is_tiny ? Vector{} : p;
}

/// ln x for x >= 1, relative error below 2e-7.
/// Source: the polynomial of Cephes' logf, after x = 2^n (1 + r) with 1 + r near 1.
Vector logarithm(Vector x) {
  const Integers bits = (Integers)x;
  Vector n = __builtin_convertvector((bits >> 23) - 126, Vector);
  Vector r = (Vector)((bits & 0x007fffff) | 0x3f000000);  // In [0.5, 1).
  const auto is_low = r < Vector{} + 0.707106781186547524f;
  n = is_low ? n - 1.0f : n;
  r = (is_low ? r + r : r) - 1.0f;
  Vector p = r * 7.0376836292e-2f - 1.1514610310e-1f;
  p = p * r + 1.1676998740e-1f;
  p = p * r - 1.2420140846e-1f;
  p = p * r + 1.4249322787e-1f;
  p = p * r - 1.6668057665e-1f;
  p = p * r + 2.0000714765e-1f;
  p = p * r - 2.4999993993e-1f;
  p = p * r + 3.3333331174e-1f;
  const Vector square = r * r;
  return (r + (p * square * r - n * 2.12194440e-4f - 0.5f * square)) + n * 0.693359375f;
}

}  // namespace
}  // namespace flowtrain::kernels
