#pragma once

#include <cstddef>
#include <cstdint>
#include <numeric>
#include <span>
#include <vector>

#include "base/caching_allocator.hpp"

namespace flowtrain::packing {

__extension__ using Wide = __int128;  ///< For products of costs and tokens.
/// For values of each sample: the thread keeps the memory for its next call.
template <class T>
using Vector = std::vector<T, CachingAllocator<T>>;
using Order = std::span<const std::uint32_t>;                   ///< Samples, in an order.
inline constexpr std::uint32_t kNone = UINT32_MAX;              ///< No bin, or no sample.
inline constexpr std::int64_t kMaxSum = std::int64_t{1} << 62;  ///< Of tokens, and of costs.

/// Samples of one step, one entry each.
///
/// Costs are in any unit; their sum fits 62 bits, and so does that of the tokens. Kernels rely
/// on this; `check` in input.hpp tests it.
struct Samples {
  std::span<const std::int64_t> tokens;
  std::span<const std::int64_t> cost;
  std::span<const std::int64_t> encoder = {};  ///< Its part of the cost, in rigid coupling alone.

  std::size_t size() const { return cost.size(); }
};

/// Bins of one step: `slots` microbatches on each of `ranks` ranks. Bin b is slot b / ranks.
struct Grid {
  std::uint32_t ranks;
  std::uint32_t slots;
  std::int64_t max_tokens;   ///< Maximum tokens of one bin.
  std::uint32_t stages = 1;  ///< Of each rank's pipeline.

  std::uint32_t bins() const { return ranks * slots; }
};

inline std::int64_t sum(std::span<const std::int64_t> values) {
  return std::accumulate(values.begin(), values.end(), std::int64_t{0});
}

}  // namespace flowtrain::packing
