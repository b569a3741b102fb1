#include "packing/input.hpp"

#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>
#include <numeric>
#include <string>

#include "base/error.hpp"

namespace flowtrain::packing {
namespace {

constexpr std::uint32_t kMaxBins = 1U << 24;

/// Throws if a value is negative, or if the sum exceeds `limit`; that message ends with `reason`.
void check_sum(std::span<const std::int64_t> values, const std::string& name, std::int64_t limit,
               const std::string& reason) {
  std::int64_t bits = 0, sum = 0;
  for (const std::int64_t value : values) bits |= value;  // No value exceeds them; quick.
  if (bits >= 0 && bits <= limit / std::max(std::ssize(values), std::ptrdiff_t{1})) return;
  for (std::size_t i = 0; i < values.size(); ++i) {
    if (values[i] < 0) {
      throw BadArgument(name + "[" + std::to_string(i) + "]=" + std::to_string(values[i]) +
                        ": must not be negative");
    }
    if (values[i] > limit - sum) throw BadArgument(name + ": " + reason);
    sum += values[i];
  }
}

}  // namespace

void check(const Samples& samples, const Grid& grid) {
  if (grid.ranks == 0 || grid.slots == 0 || grid.slots > kMaxBins / grid.ranks) {
    throw BadArgument(
        "ranks=" + std::to_string(grid.ranks) + ", microbatches=" + std::to_string(grid.slots) +
        ": both must be at least 1, and their product at most " + std::to_string(kMaxBins));
  }
  if (grid.max_tokens < 1) {
    throw BadArgument("max_tokens=" + std::to_string(grid.max_tokens) + ": must be at least 1");
  }
  if (grid.stages == 0) throw BadArgument("stages=0: must be at least 1");
  if (samples.tokens.size() != samples.cost.size()) {
    throw BadArgument("tokens has " + std::to_string(samples.tokens.size()) + " samples and cost " +
                      std::to_string(samples.cost.size()) + "; give one value per sample in each");
  }
  for (std::size_t i = 0; i < samples.size(); ++i) {
    if (samples.tokens[i] <= grid.max_tokens) continue;
    throw BadArgument("sample " + std::to_string(i) + ": " + std::to_string(samples.tokens[i]) +
                      " tokens exceed max_tokens=" + std::to_string(grid.max_tokens) +
                      "; raise max_tokens, shorten the sample or pass oversize='drop'");
  }
  check_sum(samples.tokens, "tokens", kMaxSum, "their sum exceeds 2^62");
  check_sum(samples.cost, "cost", kMaxSum / grid.stages,
            "its sum times stages=" + std::to_string(grid.stages) +
                " exceeds 2^62; give costs in a larger unit");
}

double scale(std::span<const double> cost, std::span<std::int64_t> out, const char* name) {
  constexpr double kLargest = 0x1p32;
  constexpr auto kInfinite = std::bit_cast<std::uint64_t>(std::numeric_limits<double>::infinity());
  // As integers, the bits of non-negative doubles sort by value, and those of negative ones,
  // infinity and NaN sort after them. Adding 0 turns -0 into +0.
  std::uint64_t bits = 0;
  for (const double value : cost) bits = std::max(bits, std::bit_cast<std::uint64_t>(value + 0.0));
  for (std::size_t i = 0; bits >= kInfinite && i < cost.size(); ++i) {
    if (cost[i] >= 0 && !std::isinf(cost[i])) continue;
    throw BadArgument(std::string(name) + "[" + std::to_string(i) + "]=" + std::to_string(cost[i]) +
                      ": must be a finite number, not negative");
  }
  const auto largest = std::bit_cast<double>(bits);
  const double factor = std::min(kLargest / largest, std::numeric_limits<double>::max());
  for (std::size_t i = 0; i < cost.size(); ++i) {
    out[i] = static_cast<std::int64_t>(cost[i] * factor + 0.5);
  }
  return largest > 0 ? 1 / factor : 1.0;
}

double reduce(std::span<const std::int64_t> cost, std::span<std::int64_t> out, const char* name) {
  check_sum(cost, name, kMaxSum, "their sum exceeds 2^62; give costs in a larger unit");
  std::int64_t divisor = 0;
  for (const std::int64_t value : cost) {
    if (divisor != 1) divisor = std::gcd(divisor, value);
  }
  if (divisor <= 1) {
    std::copy(cost.begin(), cost.end(), out.begin());
    return 1.0;
  }
  for (std::size_t i = 0; i < cost.size(); ++i) out[i] = cost[i] / divisor;
  return static_cast<double>(divisor);
}

}  // namespace flowtrain::packing
