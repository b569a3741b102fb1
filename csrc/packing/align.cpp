#include "packing/align.hpp"

#include <algorithm>
#include <numeric>

#include "packing/order.hpp"

namespace flowtrain::packing {

std::vector<std::uint32_t> align(std::span<const std::int64_t> loads) {
  return order_descending(loads);
}

std::vector<std::uint32_t> deal_ranks(std::span<const std::int64_t> loads,
                                      std::span<const std::uint32_t> aligned, std::uint32_t ranks) {
  std::vector<std::uint32_t> dealt(aligned.size());
  std::vector<std::int64_t> sums(ranks);
  std::vector<std::uint32_t> lightest(ranks);
  std::iota(lightest.begin(), lightest.end(), 0U);
  for (std::size_t first = 0; first < aligned.size(); first += ranks) {
    std::stable_sort(lightest.begin(), lightest.end(),
                     [&](std::uint32_t a, std::uint32_t b) { return sums[a] < sums[b]; });
    for (std::size_t i = 0; i < ranks; ++i) {
      dealt[first + i] = lightest[i];
      sums[lightest[i]] += loads[aligned[first + i]];
    }
  }
  return dealt;
}

std::int64_t lockstep_cost(std::span<const std::int64_t> loads,
                           std::span<const std::uint32_t> aligned, std::uint32_t ranks) {
  std::int64_t sum = 0;
  for (std::size_t first = 0; first < aligned.size(); first += ranks) {
    sum += loads[aligned[first]];
  }
  return sum;
}

}  // namespace flowtrain::packing
