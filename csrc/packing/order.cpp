#include "packing/order.hpp"

#include <algorithm>
#include <array>
#include <bit>

namespace flowtrain::packing {
namespace {

struct Entry {
  std::uint64_t key;
  std::uint32_t index;
};

/// Stable sort by ascending key, least significant digits first.
template <int kBits>
void radix_sort(std::vector<Entry>& entries, std::vector<Entry>& spare, std::uint64_t largest) {
  constexpr std::size_t kDigits = std::size_t{1} << kBits;
  for (int shift = 0; shift < static_cast<int>(std::bit_width(largest)); shift += kBits) {
    std::array<std::uint32_t, kDigits> start{};
    for (const Entry& e : entries) ++start[(e.key >> shift) & (kDigits - 1)];
    std::uint32_t sum = 0;
    for (std::uint32_t& count : start) {
      const std::uint32_t here = count;
      count = sum;
      sum += here;
    }
    for (const Entry& e : entries) spare[start[(e.key >> shift) & (kDigits - 1)]++] = e;
    entries.swap(spare);
  }
}

/// Sorts entries by descending value; what was equal keeps its order.
void sort_descending(std::vector<Entry>& entries, std::vector<Entry>& spare,
                     std::span<const std::int64_t> values) {
  const auto [low, high] = std::minmax_element(values.begin(), values.end());
  for (Entry& e : entries) e.key = static_cast<std::uint64_t>(*high - values[e.index]);
  const auto largest = static_cast<std::uint64_t>(*high - *low);
  // A pass over the digits' counts costs as much as one over so many samples.
  if (entries.size() < 128) {
    std::stable_sort(entries.begin(), entries.end(),
                     [](const Entry& a, const Entry& b) { return a.key < b.key; });
  } else if (entries.size() < 4096) {
    radix_sort<8>(entries, spare, largest);
  } else {
    radix_sort<11>(entries, spare, largest);
  }
}

std::vector<Entry> entries_of(std::size_t count) {
  std::vector<Entry> entries(count);
  for (std::size_t i = 0; i < count; ++i) entries[i].index = static_cast<std::uint32_t>(i);
  return entries;
}

std::vector<std::uint32_t> indices_of(const std::vector<Entry>& entries) {
  std::vector<std::uint32_t> out(entries.size());
  for (std::size_t i = 0; i < entries.size(); ++i) out[i] = entries[i].index;
  return out;
}

}  // namespace

std::vector<std::uint32_t> order_by_cost(const Samples& samples) {
  if (samples.size() == 0) return {};
  std::vector<Entry> entries = entries_of(samples.size());
  std::vector<Entry> spare(entries.size());
  sort_descending(entries, spare, samples.cost);
  // Tokens only part what costs the same, which is rare: those runs are sorted by themselves.
  for (std::size_t begin = 0; begin < entries.size();) {
    std::size_t end = begin + 1;
    while (end < entries.size() && entries[end].key == entries[begin].key) ++end;
    if (end - begin > 1)
      std::stable_sort(entries.begin() + static_cast<std::ptrdiff_t>(begin),
                       entries.begin() + static_cast<std::ptrdiff_t>(end),
                       [&](const Entry& a, const Entry& b) {
                         return samples.tokens[a.index] > samples.tokens[b.index];
                       });
    begin = end;
  }
  return indices_of(entries);
}

std::vector<std::uint32_t> order_descending(std::span<const std::int64_t> values) {
  if (values.empty()) return {};
  std::vector<Entry> entries = entries_of(values.size());
  std::vector<Entry> spare(entries.size());
  sort_descending(entries, spare, values);
  return indices_of(entries);
}

}  // namespace flowtrain::packing
