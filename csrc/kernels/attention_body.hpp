// Attention of a document; see set.hpp.
#pragma once

#include "kernels/functions.hpp"

namespace flowtrain::kernels {
namespace {

/// Factor of a product whose element (row, column) is data[row * row_stride + column * stride].
struct Left {
  const float* data;
  std::int64_t row_stride;
  std::int64_t stride;
};

/// Factor or result of a product, with rows of whole vectors.
template <class Float>
struct Matrix {
  Float* data;
  std::int64_t stride;
};

/// Elements of a product that are computed. In a causal document, half are zero or unused.
enum class Part {
  kAll,
  kLowerResult,  ///< Columns of the result up to the row, and up to the end of their vectors.
  kLowerLeft,    ///< The left factor is zero above its diagonal.
  kUpperLeft,    ///< The left factor is zero below its diagonal.
};

constexpr std::int64_t kTile = 4;

template <int kRows, int kVectors>
void tile(Left a, Matrix<const float> b, Matrix<float> c, std::int64_t first, std::int64_t last,
          bool add) {
  Vector sums[kRows][kVectors];
  for (int i = 0; i < kRows; ++i)
    for (int j = 0; j < kVectors; ++j)
      sums[i][j] = add ? at(c.data + i * c.stride + j * kLanes) : Vector{};
  for (std::int64_t k = first; k < last; ++k) {
    Vector row[kVectors];
    for (int j = 0; j < kVectors; ++j) row[j] = at(b.data + k * b.stride + j * kLanes);
    for (int i = 0; i < kRows; ++i) {
      const float factor = a.data[i * a.row_stride + k * a.stride];
      for (int j = 0; j < kVectors; ++j) sums[i][j] += factor * row[j];
    }
  }
  for (int i = 0; i < kRows; ++i)
    for (int j = 0; j < kVectors; ++j) at(c.data + i * c.stride + j * kLanes) = sums[i][j];
}

template <int kVectors>
void columns(Left a, Matrix<const float> b, Matrix<float> c, std::int64_t rows, std::int64_t column,
             std::int64_t inner, Part part, bool add) {
  std::int64_t i = part == Part::kLowerResult ? column / kTile * kTile : 0;
  while (i < rows) {
    const std::int64_t count = i + kTile <= rows ? kTile : 1, end = i + count;
    const std::int64_t first = part == Part::kUpperLeft ? i : 0;
    const std::int64_t last = part == Part::kLowerLeft && end < inner ? end : inner;
    const Left left{a.data + i * a.row_stride, a.row_stride, a.stride};
    const Matrix<const float> right{b.data + column, b.stride};
    const Matrix<float> result{c.data + i * c.stride + column, c.stride};
    if (count == kTile) {
      tile<kTile, kVectors>(left, right, result, first, last, add);
    } else {
      tile<1, kVectors>(left, right, result, first, last, add);
    }
    i = end;
  }
}

/// c = a b, or c += a b.
void multiply(Left a, Matrix<const float> b, Matrix<float> c, std::int64_t rows, std::int64_t width,
              std::int64_t inner, Part part, bool add = false) {
  std::int64_t j = 0;
  for (; j + 2 * kLanes <= width; j += 2 * kLanes) columns<2>(a, b, c, rows, j, inner, part, add);
  if (j < width) columns<1>(a, b, c, rows, j, inner, part, add);
}

/// Copies the rows of a head of a document, and fills them up with zeros.
void gather(Rows<const float> from, std::int64_t head, const Document& d, float* to) {
  const std::int64_t width = padded(d.head_dim);
  for (std::int64_t t = 0; t < d.length; ++t) {
    copy(from.data + head * from.head_stride + t * from.token_stride, to + t * width, d.head_dim);
    for (std::int64_t i = d.head_dim; i < width; ++i) to[t * width + i] = 0.0f;
  }
}

void scatter(const float* from, Rows<float> to, std::int64_t head, const Document& d) {
  const std::int64_t width = padded(d.head_dim);
  for (std::int64_t t = 0; t < d.length; ++t)
    copy(from + t * width, to.data + head * to.head_stride + t * to.token_stride, d.head_dim);
}

/// The transpose of gathered rows, its own rows filled up with zeros.
void turn(const float* rows, const Document& d, float* to) {
  const std::int64_t width = padded(d.head_dim), length = padded(d.length);
  for (std::int64_t i = 0; i < d.head_dim; ++i) {
    std::int64_t t = 0;
    for (; t < d.length; ++t) to[i * length + t] = rows[t * width + i];
    for (; t < length; ++t) to[i * length + t] = 0.0f;
  }
}

/// Scores that a token has: with itself and the tokens before it, or with all.
std::int64_t attended(const Document& d, std::int64_t token) {
  return d.causal ? token + 1 : d.length;
}

/// Fills the scores of a token up to whole vectors with minus infinity, and the rest with zeros.
///
/// Returns the end of the whole vectors.
std::int64_t mask(const Document& d, std::int64_t token, float* scores) {
  const std::int64_t count = attended(d, token), end = padded(count);
  const std::int64_t last = end - kLanes, length = padded(d.length);
  const Integers used = kLane < static_cast<std::int32_t>(count - last);
  at(scores + last) = used ? at(scores + last) : Vector{} + kMinusInfinity;
  for (std::int64_t t = end; t < length; t += kLanes) at(scores + t) = Vector{};
  return end;
}

/// Turns scores into weights, in place.
///
/// `tops` and `totals` have padded(d.length) elements.
void softmax(const Document& d, float* scores, float* tops, float* totals, float* log_sums) {
  const std::int64_t length = padded(d.length), count = d.length;
  const float scale = d.scale;
  for (std::int64_t t = 0; t < count; ++t) {
    float* row = scores + t * length;
    const std::int64_t end = mask(d, t, row);
    Vector largest = at(row);
    for (std::int64_t j = kLanes; j < end; j += kLanes) largest = larger(largest, at(row + j));
    const float top = reduced(largest, larger);
    Vector sums = {};
    for (std::int64_t j = 0; j < end; j += kLanes) {
      const Vector weight = exponential((at(row + j) - top) * scale);
      at(row + j) = weight;
      sums += weight;
    }
    const float total = sum(sums), inverse = 1.0f / total;
    for (std::int64_t j = 0; j < end; j += kLanes) at(row + j) *= inverse;
    tops[t] = top;
    totals[t] = total;
  }
  for (std::int64_t t = count; t < length; ++t) tops[t] = totals[t] = 1.0f;
  for (std::int64_t t = 0; t < length; t += kLanes)
    at(tops + t) = at(tops + t) * scale + logarithm(at(totals + t));
  copy(tops, log_sums, count);
}

/// Takes parts of the scratch of a document.
struct Scratch {
  float* free;

  float* take(std::int64_t floats) {
    float* part = free;
    free += floats;
    return part;
  }
};

void attend(const Document& d, float* scratch) {
  const std::int64_t width = padded(d.head_dim), length = padded(d.length);
  const std::int64_t rows = d.length * width;
  Scratch parts{scratch};
  float* q = parts.take(rows);
  float* k = parts.take(rows);
  float* v = parts.take(rows);
  float* out = parts.take(rows);
  float* turned_k = parts.take(d.head_dim * length);
  float* scores = parts.take(d.length * length);
  float* tops = parts.take(length);
  float* totals = parts.take(length);
  const std::int64_t group = d.heads / d.kv_heads;
  for (std::int64_t head = 0; head < d.heads; ++head) {
    if (head % group == 0) {
      gather(d.k, head / group, d, k);
      gather(d.v, head / group, d, v);
      turn(k, d, turned_k);
    }
    gather(d.q, head, d, q);
    multiply({q, width, 1}, {turned_k, length}, {scores, length}, d.length, length, d.head_dim,
             d.causal ? Part::kLowerResult : Part::kAll);
    softmax(d, scores, tops, totals, d.log_sums + head * d.log_sums_stride);
    multiply({scores, length, 1}, {v, width}, {out, width}, d.length, width, d.length,
             d.causal ? Part::kLowerLeft : Part::kAll);
    scatter(out, d.to_out, head, d);
  }
}

void attend_backward(const Document& d, float* scratch) {
  const std::int64_t width = padded(d.head_dim), length = padded(d.length);
  const std::int64_t rows = d.length * width;
  Scratch parts{scratch};
  float* q = parts.take(rows);
  float* k = parts.take(rows);
  float* v = parts.take(rows);  // After its transpose was made: the gradient of q.
  float* of_out = parts.take(rows);
  float* of_k = parts.take(rows);
  float* of_v = parts.take(rows);
  float* turned_k = parts.take(d.head_dim * length);
  float* turned_v = parts.take(d.head_dim * length);
  float* weights = parts.take(d.length * length);
  float* of_scores = parts.take(d.length * length);
  float* of_q = v;
  const float scale = d.scale;
  const std::int64_t group = d.heads / d.kv_heads;
  for (std::int64_t head = 0; head < d.heads; ++head) {
    const bool first = head % group == 0, last = (head + 1) % group == 0;
    if (first) {
      gather(d.k, head / group, d, k);
      gather(d.v, head / group, d, v);
      turn(k, d, turned_k);
      turn(v, d, turned_v);
    }
    gather(d.q, head, d, q);
    gather(d.of_out, head, d, of_out);
    const Part lower_result = d.causal ? Part::kLowerResult : Part::kAll;
    multiply({q, width, 1}, {turned_k, length}, {weights, length}, d.length, length, d.head_dim,
             lower_result);
    multiply({of_out, width, 1}, {turned_v, length}, {of_scores, length}, d.length, length,
             d.head_dim, lower_result);
    for (std::int64_t t = 0; t < d.length; ++t) {
      const std::int64_t end = mask(d, t, weights + t * length);
      const float log_sum = d.log_sums[head * d.log_sums_stride + t];
      const float* out = d.out.data + head * d.out.head_stride + t * d.out.token_stride;
      const float mean = dot(of_out + t * width, out, d.head_dim);
      for (std::int64_t j = end; j < length; j += kLanes) at(of_scores + t * length + j) = Vector{};
      for (std::int64_t j = t * length; j < t * length + end; j += kLanes) {
        const Vector weight = exponential(at(weights + j) * scale - log_sum);
        at(of_scores + j) = weight * (at(of_scores + j) - mean) * scale;
        at(weights + j) = weight;
      }
    }
    multiply({of_scores, length, 1}, {k, width}, {of_q, width}, d.length, width, d.length,
             d.causal ? Part::kLowerLeft : Part::kAll);
    scatter(of_q, d.of_q, head, d);
    const Part upper_left = d.causal ? Part::kUpperLeft : Part::kAll;
    multiply({of_scores, 1, length}, {q, width}, {of_k, width}, d.length, width, d.length,
             upper_left, !first);
    multiply({weights, 1, length}, {of_out, width}, {of_v, width}, d.length, width, d.length,
             upper_left, !first);
    if (last) {
      scatter(of_k, d.of_k, head / group, d);
      scatter(of_v, d.of_v, head / group, d);
    }
  }
}

}  // namespace
}  // namespace flowtrain::kernels
