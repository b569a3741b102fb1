#include "packing/best_fit.hpp"

#include <algorithm>
#include <numeric>

#include "packing/integer_set.hpp"

namespace flowtrain::packing {

std::vector<std::uint32_t> best_fit(std::span<const std::int64_t> tokens,
                                    std::span<const std::uint32_t> order, std::int64_t token_cap) {
  // More room than all tokens need is not used, and would cost memory.
  const std::int64_t all = std::accumulate(tokens.begin(), tokens.end(), std::int64_t{0});
  token_cap = std::min(token_cap, all);
  const auto rooms = static_cast<std::uint64_t>(token_cap) + 1;
  IntegerSet open(rooms);
  std::vector<std::uint32_t> latest(rooms, kNone);  // Bin with so much room.
  std::vector<std::uint32_t> before;                // Per bin: the one with as much room.
  std::vector<std::uint32_t> bins(tokens.size(), kNone);
  for (const std::uint32_t i : order) {
    const auto length = static_cast<std::uint64_t>(tokens[i]);
    std::uint64_t room = open.at_least(length);
    std::uint32_t bin = 0;
    if (room == IntegerSet::kNoValue) {
      bin = static_cast<std::uint32_t>(before.size());
      before.push_back(kNone);
      room = static_cast<std::uint64_t>(token_cap);
    } else {
      bin = latest[room];
      latest[room] = before[bin];
      if (latest[room] == kNone) open.erase(room);
    }
    bins[i] = bin;
    room -= length;
    before[bin] = latest[room];
    latest[room] = bin;
    open.insert(room);
  }
  return bins;
}

std::vector<std::uint32_t> next_fit(std::span<const std::int64_t> tokens,
                                    std::span<const std::int64_t> others,
                                    std::span<const std::uint32_t> order, std::int64_t token_cap,
                                    std::int64_t other_cap) {
  std::vector<std::uint32_t> bins(tokens.size(), kNone);
  std::uint32_t bin = 0;
  std::int64_t used = 0, other = 0;
  bool empty = true;
  for (const std::uint32_t i : order) {
    if (!empty && (used + tokens[i] > token_cap || other + others[i] > other_cap)) {
      ++bin;
      used = other = 0;
    }
    bins[i] = bin;
    used += tokens[i];
    other += others[i];
    empty = false;
  }
  return bins;
}

}  // namespace flowtrain::packing
