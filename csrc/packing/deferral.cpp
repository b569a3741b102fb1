#include "packing/deferral.hpp"

#include <algorithm>
#include <cstdlib>
#include <functional>
#include <numeric>

namespace flowtrain::packing {
namespace {

constexpr std::int64_t kUnits = 65536;

}  // namespace

std::vector<std::uint8_t> nearest_subset(std::span<const std::int64_t> values,
                                         std::int64_t target) {
  const std::int64_t total = std::accumulate(values.begin(), values.end(), std::int64_t{0});
  std::vector<std::uint8_t> chosen(values.size());
  if (total == 0 || target <= 0) return chosen;
  const double unit = total <= kUnits ? 1.0 : static_cast<double>(total) / kUnits;
  const auto units = [&](std::int64_t value) {
    return static_cast<std::int64_t>(static_cast<double>(value) / unit + 0.5);
  };
  // Rounding up may exceed the total by half a unit a value.
  const auto count = static_cast<std::size_t>(units(total)) + values.size() + 1;
  // For each sum: the last value that first reached it, from which the subset is read back.
  std::vector<std::int32_t> last(count, -1);
  std::vector<std::int64_t> weight(values.size());
  std::size_t reach = 0;
  for (std::size_t i = 0; i < values.size(); ++i) {
    weight[i] = units(values[i]);
    if (weight[i] == 0) continue;
    const auto w = static_cast<std::size_t>(weight[i]);
    for (std::size_t sum = reach + 1; sum-- > 0;) {
      const bool reached = sum == 0 || last[sum] >= 0;
      if (reached && last[sum + w] < 0) last[sum + w] = static_cast<std::int32_t>(i);
    }
    reach += w;
  }
  const std::int64_t wanted = units(target);
  std::size_t best = 0;
  for (std::size_t sum = 1; sum <= reach; ++sum) {
    if (last[sum] < 0) continue;
    if (std::abs(static_cast<std::int64_t>(sum) - wanted) <
        std::abs(static_cast<std::int64_t>(best) - wanted)) {
      best = sum;
    }
  }
  while (best > 0) {
    const auto i = static_cast<std::size_t>(last[best]);
    chosen[i] = 1;
    best -= static_cast<std::size_t>(weight[i]);
  }
  return chosen;
}

std::vector<std::int32_t> bottleneck_match(std::span<const std::int64_t> paired,
                                           std::span<const std::int64_t> alone,
                                           std::uint32_t columns) {
  const std::size_t rows = alone.size();
  std::vector<std::int32_t> row_of(columns), column_of(rows);
  // Whether all rows above the limit find a column that takes them below it.
  const auto feasible = [&](std::int64_t limit) {
    std::fill(row_of.begin(), row_of.end(), -1);
    std::vector<std::uint8_t> seen;
    const std::function<bool(std::size_t)> augment = [&](std::size_t row) {
      for (std::uint32_t c = 0; c < columns; ++c) {
        if (seen[c] || paired[row * columns + c] > limit) continue;
        seen[c] = 1;
        if (row_of[c] < 0 || augment(static_cast<std::size_t>(row_of[c]))) {
          row_of[c] = static_cast<std::int32_t>(row);
          return true;
        }
      }
      return false;
    };
    for (std::size_t row = 0; row < rows; ++row) {
      if (alone[row] <= limit) continue;
      seen.assign(columns, 0);
      if (!augment(row)) return false;
    }
    return true;
  };
  std::vector<std::int64_t> limits(paired.begin(), paired.end());
  limits.insert(limits.end(), alone.begin(), alone.end());
  std::sort(limits.begin(), limits.end());
  std::size_t low = 0, high = limits.empty() ? 0 : limits.size() - 1;
  while (low < high) {
    const std::size_t middle = (low + high) / 2;
    if (feasible(limits[middle])) {
      high = middle;
    } else {
      low = middle + 1;
    }
  }
  std::fill(column_of.begin(), column_of.end(), -1);
  if (limits.empty()) return column_of;
  feasible(limits[low]);
  for (std::uint32_t c = 0; c < columns; ++c) {
    if (row_of[c] >= 0)
      column_of[static_cast<std::size_t>(row_of[c])] = static_cast<std::int32_t>(c);
  }
  std::uint32_t c = 0;
  for (std::size_t row = 0; row < rows; ++row) {
    if (column_of[row] >= 0) continue;
    while (c < columns && row_of[c] >= 0) ++c;
    if (c == columns) break;
    column_of[row] = static_cast<std::int32_t>(c++);
  }
  return column_of;
}

}  // namespace flowtrain::packing
