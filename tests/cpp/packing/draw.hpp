#pragma once

#include <cstdint>
#include <random>
#include <vector>

#include "packing/problem.hpp"

/// Samples drawn for tests; small ranges, so that ties and full bins are common.
struct Drawn {
  std::vector<std::int64_t> tokens;
  std::vector<std::int64_t> cost;

  flowtrain::packing::Samples samples() const { return {tokens, cost}; }
};

inline std::int64_t uniform(std::mt19937_64& random, std::int64_t low, std::int64_t high) {
  return low + static_cast<std::int64_t>(random() % static_cast<std::uint64_t>(high - low + 1));
}

inline Drawn draw(std::mt19937_64& random, std::size_t count, std::int64_t most_tokens,
                  std::int64_t most_cost) {
  Drawn drawn;
  for (std::size_t i = 0; i < count; ++i) {
    drawn.tokens.push_back(uniform(random, 1, most_tokens));
    // Half the draws grow with length, as costs do; the others do not, as costs may.
    drawn.cost.push_back(count % 2 == 0 ? drawn.tokens.back() * drawn.tokens.back()
                                        : uniform(random, 0, most_cost));
  }
  return drawn;
}
