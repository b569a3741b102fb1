#include "packing/order.hpp"

#include <algorithm>
#include <array>
#include <bit>
#include <cstddef>
#include <utility>

namespace flowtrain::packing {
namespace {

constexpr int kMaxDigit = 11;  // Bits of a digit, so that its counts stay in the cache.

/// Stable sort of words by their bits from `from` up to `to`, least significant digits first.
void radix_sort(Vector<std::uint64_t>& words, int from, int to) {
  // A pass over the counts costs as much as one over so many words.
  const int max_digit = std::min(kMaxDigit, static_cast<int>(std::bit_width(words.size())));
  const int passes = (to - from + max_digit - 1) / max_digit;
  if (passes == 0) return;
  const int digit = (to - from + passes - 1) / passes;
  const std::uint64_t mask = (std::uint64_t{1} << digit) - 1;
  Vector<std::uint64_t> spare(words.size());
  std::array<std::uint32_t, std::size_t{1} << kMaxDigit> start;
  for (int shift = from; shift < to; shift += digit) {
    std::fill_n(start.begin(), mask + 1, 0U);
    for (const std::uint64_t word : words) ++start[(word >> shift) & mask];
    std::uint32_t sum = 0;
    for (std::size_t d = 0; d <= mask; ++d) {
      const std::uint32_t here = start[d];
      start[d] = sum;
      sum += here;
    }
    for (const std::uint64_t word : words) spare[start[(word >> shift) & mask]++] = word;
    words.swap(spare);
  }
}

/// Indices sorted by descending value. The high bits of the value and the index make one word,
/// which is quick to move.
class Descending {
 public:
  explicit Descending(std::span<const std::int64_t> values)
      : values_(values), words_(values.size()) {
    if (values.empty()) return;
    const auto [low, high] = std::minmax_element(values.begin(), values.end());
    const auto largest = static_cast<std::uint64_t>(*high - *low);
    index_bits_ = static_cast<int>(std::bit_width(values.size() - 1));
    const int value_bits = static_cast<int>(std::bit_width(largest));
    const int shift = std::max(0, value_bits + index_bits_ - 64);
    for (std::size_t i = 0; i < words_.size(); ++i) {
      words_[i] = static_cast<std::uint64_t>(*high - values[i]) >> shift << index_bits_ | i;
    }
    radix_sort(words_, index_bits_, index_bits_ + std::max(0, value_bits - shift));
    if (shift > 0)
      break_ties([&](std::uint32_t a, std::uint32_t b) { return values_[a] > values_[b]; });
  }

  /// Orders words of equal value bits by `before`, then by index.
  template <class Before>
  void break_ties(Before before) {
    for (auto begin = words_.begin(); begin != words_.end();) {
      auto end = begin + 1;
      while (end != words_.end() && *end >> index_bits_ == *begin >> index_bits_) ++end;
      const auto less = [&](std::uint64_t a, std::uint64_t b) {
        return before(index(a), index(b));
      };
      if (!std::is_sorted(begin, end, less)) std::stable_sort(begin, end, less);
      begin = end;
    }
  }

  Vector<std::uint32_t> indices() const {
    Vector<std::uint32_t> out(words_.size());
    for (std::size_t k = 0; k < out.size(); ++k) out[k] = index(words_[k]);
    return out;
  }

 private:
  std::uint32_t index(std::uint64_t word) const {
    return static_cast<std::uint32_t>(word & ((std::uint64_t{1} << index_bits_) - 1));
  }

  std::span<const std::int64_t> values_;
  Vector<std::uint64_t> words_;
  int index_bits_ = 0;
};

}  // namespace

Vector<std::uint32_t> order_by_cost(const Samples& samples) {
  Descending sorted(samples.cost);
  sorted.break_ties([&](std::uint32_t a, std::uint32_t b) {
    return std::pair(samples.cost[a], samples.tokens[a]) >
           std::pair(samples.cost[b], samples.tokens[b]);
  });
  return sorted.indices();
}

Vector<std::uint32_t> order_descending(std::span<const std::int64_t> values) {
  return Descending(values).indices();
}

Vector<std::uint32_t> order_by_density(const Samples& samples, Order by_cost) {
  const auto room = [&](std::uint32_t i) { return std::max<std::int64_t>(1, samples.tokens[i]); };
  const auto denser = [&](std::uint32_t a, std::uint32_t b) {
    return Wide{samples.cost[a]} * room(b) > Wide{samples.cost[b]} * room(a);
  };
  Vector<std::uint32_t> out(by_cost.begin(), by_cost.end());
  // Mostly so, as cost grows faster than length.
  if (std::is_sorted(out.begin(), out.end(), denser)) return out;
  std::stable_sort(out.begin(), out.end(), denser);
  return out;
}

}  // namespace flowtrain::packing
