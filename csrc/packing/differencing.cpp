#include "packing/differencing.hpp"

#include <algorithm>
#include <queue>

#include "packing/problem.hpp"

namespace flowtrain::packing {
namespace {

/// A sum and a chain of the values in it.
struct Part {
  std::int64_t sum = 0;
  std::uint32_t first = kNone;
  std::uint32_t last = kNone;
};

/// A split of some of the values, parts by descending sum.
struct Split {
  std::vector<Part> parts;
  std::uint32_t age;

  std::int64_t spread() const { return parts.front().sum - parts.back().sum; }
};

}  // namespace

std::vector<std::uint32_t> difference(std::span<const std::int64_t> values,
                                      std::span<const std::uint32_t> order, std::uint32_t parts,
                                      bool equal_count) {
  std::vector<Split> splits;
  const std::size_t step = equal_count ? parts : 1;
  for (std::size_t first = 0; first < order.size(); first += step) {
    Split split{std::vector<Part>(parts), static_cast<std::uint32_t>(splits.size())};
    for (std::size_t k = first; k < std::min(first + step, order.size()); ++k) {
      split.parts[k - first] = {values[order[k]], order[k], order[k]};
    }
    splits.push_back(std::move(split));
  }
  std::vector<std::uint32_t> part(values.size(), kNone);
  if (splits.empty()) return part;

  std::vector<std::uint32_t> next(values.size(), kNone);
  const auto less = [&](std::uint32_t a, std::uint32_t b) {
    const std::int64_t x = splits[a].spread(), y = splits[b].spread();
    return x != y ? x < y : splits[a].age > splits[b].age;
  };
  std::vector<std::uint32_t> indices(splits.size());
  for (std::uint32_t i = 0; i < indices.size(); ++i) indices[i] = i;
  std::priority_queue<std::uint32_t, std::vector<std::uint32_t>, decltype(less)> uneven(
      less, std::move(indices));
  while (uneven.size() > 1) {
    const std::uint32_t a = uneven.top();
    uneven.pop();
    const std::uint32_t b = uneven.top();
    uneven.pop();
    for (std::uint32_t k = 0; k < parts; ++k) {
      Part& into = splits[a].parts[k];
      const Part& from = splits[b].parts[parts - 1 - k];
      into.sum += from.sum;
      if (from.first == kNone) continue;
      if (into.first == kNone) {
        into.first = from.first;
      } else {
        next[into.last] = from.first;
      }
      into.last = from.last;
    }
    splits[b].parts.clear();
    splits[b].parts.shrink_to_fit();
    std::stable_sort(splits[a].parts.begin(), splits[a].parts.end(),
                     [](const Part& x, const Part& y) { return x.sum > y.sum; });
    uneven.push(a);
  }
  const Split& whole = splits[uneven.top()];
  for (std::uint32_t k = 0; k < parts; ++k) {
    for (std::uint32_t i = whole.parts[k].first; i != kNone; i = next[i]) part[i] = k;
  }
  return part;
}

}  // namespace flowtrain::packing
