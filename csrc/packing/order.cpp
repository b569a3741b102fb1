#include "packing/order.hpp"

#include <algorithm>
#include <array>
#include <bit>
#include <cstddef>
#include <utility>

namespace flowtrain::packing {
namespace {

__extension__ using Wide = __int128;

constexpr int kMostDigit = 11;          // Bits of a digit, so that its counts stay in the cache.
constexpr std::size_t kFewWords = 128;  // Which a comparison sort orders faster.

/// Stable sort of words by their bits from `from` up to `to`, least significant digits first.
void radix_sort(std::vector<std::uint64_t>& words, int from, int to) {
  // A pass over the counts costs as much as one over so many words.
  const int most = std::min(kMostDigit, static_cast<int>(std::bit_width(words.size())));
  const int passes = (to - from + most - 1) / most;
  if (passes == 0) return;
  const int digit = (to - from + passes - 1) / passes;
  const std::uint64_t mask = (std::uint64_t{1} << digit) - 1;
  std::vector<std::uint64_t> spare(words.size());
  std::array<std::uint32_t, std::size_t{1} << kMostDigit> start;
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

/// Indices sorted by descending value: as much of the value as there is room for and the index
/// make one word, which is quick to move.
class Descending {
 public:
  Descending(std::span<const std::int64_t> values, int ignored)
      : values_(values), words_(values.size()) {
    if (values.empty()) return;
    const auto [low, high] = std::minmax_element(values.begin(), values.end());
    const auto largest = static_cast<std::uint64_t>(*high - *low);
    index_bits_ = static_cast<int>(std::bit_width(values.size() - 1));
    const int value_bits = static_cast<int>(std::bit_width(largest));
    const int shift = std::max(ignored, value_bits + index_bits_ - 64);
    for (std::size_t i = 0; i < words_.size(); ++i) {
      words_[i] = static_cast<std::uint64_t>(*high - values[i]) >> shift << index_bits_ | i;
    }
    if (words_.size() < kFewWords) {
      std::sort(words_.begin(), words_.end());
    } else {
      radix_sort(words_, index_bits_, index_bits_ + std::max(0, value_bits - shift));
    }
    if (shift > ignored)
      part([&](std::uint32_t a, std::uint32_t b) { return values_[a] > values_[b]; });
  }

  /// Orders what the words do not part by `before`, and by index.
  template <class Before>
  void part(Before before) {
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

  std::vector<std::uint32_t> indices() const {
    std::vector<std::uint32_t> out(words_.size());
    for (std::size_t k = 0; k < out.size(); ++k) out[k] = index(words_[k]);
    return out;
  }

 private:
  std::uint32_t index(std::uint64_t word) const {
    return static_cast<std::uint32_t>(word & ((std::uint64_t{1} << index_bits_) - 1));
  }

  std::span<const std::int64_t> values_;
  std::vector<std::uint64_t> words_;
  int index_bits_ = 0;
};

}  // namespace

std::vector<std::uint32_t> order_by_cost(const Samples& samples) {
  Descending sorted(samples.cost, 0);
  sorted.part([&](std::uint32_t a, std::uint32_t b) {
    return std::pair(samples.cost[a], samples.tokens[a]) >
           std::pair(samples.cost[b], samples.tokens[b]);
  });
  return sorted.indices();
}

std::vector<std::uint32_t> order_descending(std::span<const std::int64_t> values, int ignored) {
  return Descending(values, ignored).indices();
}

std::vector<std::uint32_t> order_by_density(const Samples& samples,
                                            std::span<const std::uint32_t> by_cost) {
  const auto room = [&](std::uint32_t i) { return std::max<std::int64_t>(1, samples.tokens[i]); };
  const auto denser = [&](std::uint32_t a, std::uint32_t b) {
    return Wide{samples.cost[a]} * room(b) > Wide{samples.cost[b]} * room(a);
  };
  std::vector<std::uint32_t> out(by_cost.begin(), by_cost.end());
  // Cost mostly grows faster than length.
  if (std::is_sorted(out.begin(), out.end(), denser)) return out;
  // Rounded is quicker, and what it gets wrong lies side by side.
  std::vector<double> density(samples.size());
  for (const std::uint32_t i : by_cost) {
    density[i] = static_cast<double>(samples.cost[i]) / static_cast<double>(room(i));
  }
  std::stable_sort(out.begin(), out.end(), [&density](std::uint32_t a, std::uint32_t b) {
    return density[a] > density[b];
  });
  for (std::size_t end = 1; end < out.size(); ++end) {
    for (std::size_t k = end; k > 0 && denser(out[k], out[k - 1]); --k) {
      std::swap(out[k], out[k - 1]);
    }
  }
  return out;
}

}  // namespace flowtrain::packing
