#include <algorithm>
#include <utility>

#include "base/math.hpp"
#include "packing/bound.hpp"
#include "packing/layout.hpp"
#include "packing/objectives.hpp"
#include "packing/order.hpp"

namespace flowtrain::packing {
namespace {

constexpr std::int64_t kEnds = 4;  // Lengths of the step that are tried, from the bound upwards.
constexpr int kRooms = 4;          // Limits of tokens that are tried for a rank, the largest first.
constexpr std::size_t kMaxPlaced = 1 << 13;  // Samples, after which no further length is tried.

/// Length of the slowest rank's pipeline.
std::int64_t length_of(std::span<const std::int64_t> loads, const Grid& grid) {
  std::int64_t longest = 0;
  for (std::size_t first = 0; first < loads.size(); first += grid.slots) {
    const auto slots = loads.subspan(first, grid.slots);
    longest = std::max(
        longest, sum(slots) + (grid.stages - 1) * *std::max_element(slots.begin(), slots.end()));
  }
  return longest;
}

/// Orders the slots of each rank: the lightest at both ends, where the pipeline fills and drains,
/// the heaviest in the middle.
void light_at_both_ends(Schedule& schedule, std::span<const std::int64_t> loads, const Grid& grid) {
  std::vector<std::int32_t> places(grid.slots);
  for (std::uint32_t m = 0; m < grid.slots; ++m) {
    // From the middle outwards, on alternating sides.
    const std::uint32_t away = (m + 1) / 2, middle = (grid.slots - 1) / 2;
    places[m] = static_cast<std::int32_t>(m % 2 == 1 ? middle + away : middle - away);
  }
  std::vector<std::int32_t> place(loads.size());
  for (std::size_t first = 0; first < loads.size(); first += grid.slots) {
    const Vector<std::uint32_t> sorted = order_descending(loads.subspan(first, grid.slots));
    for (std::size_t m = 0; m < sorted.size(); ++m) place[first + sorted[m]] = places[m];
  }
  for (std::size_t i = 0; i < schedule.slot.size(); ++i) {
    if (schedule.slot[i] < 0) continue;
    schedule.slot[i] = place[static_cast<std::size_t>(schedule.rank[i]) * grid.slots +
                             static_cast<std::size_t>(schedule.slot[i])];
  }
}

}  // namespace

Schedule pipeline(const Step& step) {
  const auto& [samples, order, grid, refined, place_all] = step;
  if (grid.stages == 1) return accumulate(step);
  // Equal microbatches make equal ranks, too.
  Schedule out = max_microbatch(step);
  out.bound = pipeline_bound(samples, order, grid);
  std::vector<std::int64_t> loads = microbatch_loads(out, samples, grid);
  out.value = length_of(loads, grid);
  const std::int64_t last = std::max(out.value, out.bound + 1);
  const std::int64_t apart = divide_up(last - out.bound, kEnds);
  const std::int64_t even = out.bound / (grid.slots + grid.stages - 1);
  const bool uneven = !order.empty() && samples.cost[order[0]] > even;
  const Effort effort{.passes = 64,
                      .work = 32768 + 16 * samples.size(),
                      .patience = 6,
                      .tolerance = sum(samples.cost) / grid.ranks / 16384};
  std::size_t placed = 0;
  for (std::int64_t end = out.bound; end < last && placed < kMaxPlaced; end += apart) {
    const bool far = out.unplaced > 0 || out.value - out.bound > out.bound / kFarDivisor;
    if (!far && (!uneven || end > out.bound)) break;
    placed += samples.size();
    Schedule gathered(samples.size());
    // Few and long samples may not fit into the slots of a full rank: try with fewer tokens.
    std::int64_t room = rank_room(grid);
    int tries = kRooms;
    for (; tries > 0 && !balance_ranks(step, end, room, effort, gathered); --tries)
      room -= room / 8;
    if (tries == 0) continue;
    std::vector<std::int64_t> others = microbatch_loads(gathered, samples, grid);
    gathered.value = length_of(others, grid);
    gathered.bound = out.bound;
    if (gathered.value < out.value || out.unplaced > 0) {
      out = std::move(gathered);
      loads = std::move(others);
    }
  }
  light_at_both_ends(out, loads, grid);
  return out;
}

}  // namespace flowtrain::packing
