#include <algorithm>
#include <numeric>

#include "base/math.hpp"
#include "packing/bound.hpp"
#include "packing/objectives.hpp"
#include "packing/order.hpp"
#include "packing/place.hpp"

namespace flowtrain::packing {
namespace {

__extension__ using Wide = __int128;

constexpr std::int64_t kEnds = 4;  // Lengths of the step that are tried, from the bound upwards.
constexpr int kRooms = 4;          // Limits of tokens that are tried for a rank, the largest first.
constexpr std::size_t kLooks = 1 << 13;  // No further length after so many samples were placed.

/// Load of each slot of each rank, shape [ranks, slots].
std::vector<std::int64_t> loads_of(const Schedule& schedule, const Samples& samples,
                                   const Grid& grid) {
  std::vector<std::int64_t> loads(grid.bins());
  for (std::size_t i = 0; i < samples.size(); ++i) {
    if (schedule.slot[i] < 0) continue;
    loads[static_cast<std::size_t>(schedule.rank[i]) * grid.slots +
          static_cast<std::size_t>(schedule.slot[i])] += samples.cost[i];
  }
  return loads;
}

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
    // From the middle outwards, by turns.
    const std::uint32_t away = (m + 1) / 2, middle = (grid.slots - 1) / 2;
    places[m] = static_cast<std::int32_t>(m % 2 == 1 ? middle + away : middle - away);
  }
  std::vector<std::int32_t> place(loads.size());
  for (std::size_t first = 0; first < loads.size(); first += grid.slots) {
    const std::vector<std::uint32_t> sorted = order_descending(loads.subspan(first, grid.slots));
    for (std::size_t m = 0; m < sorted.size(); ++m) place[first + sorted[m]] = places[m];
  }
  for (std::size_t i = 0; i < schedule.slot.size(); ++i) {
    if (schedule.slot[i] < 0) continue;
    schedule.slot[i] = place[static_cast<std::size_t>(schedule.rank[i]) * grid.slots +
                             static_cast<std::size_t>(schedule.slot[i])];
  }
}

/// Work that a rank may have if it is to end by `end` with a microbatch of `heaviest`.
std::int64_t most_work(std::int64_t end, std::int64_t heaviest, const Grid& grid) {
  const std::int64_t others = grid.stages - 1;
  const auto even = static_cast<std::int64_t>(Wide{end} * grid.slots / (grid.slots + others));
  return std::min(even, end - others * heaviest);
}

/// Puts samples that are heavier than an even microbatch together on few ranks, which then have
/// less other work, and everything else where work is missing.
///
/// Args: `rank_cap` is what a rank may have of tokens before they are packed into its slots.
/// Returns: false where tokens or ranks do not suffice.
bool gather(const Step& step, std::int64_t end, std::int64_t rank_cap, Schedule& out) {
  const auto& [samples, order, grid, refined, closed] = step;
  const std::int64_t even = end / (grid.slots + grid.stages - 1);
  Bins bins(samples, grid.ranks);
  std::vector<std::int64_t> targets(grid.ranks, most_work(end, even, grid));
  std::uint32_t rank = 0, slots = 0;
  std::size_t heavy = 0;
  for (; heavy < order.size() && samples.cost[order[heavy]] > even; ++heavy) {
    const std::uint32_t i = order[heavy];
    if (slots > 0 && (slots == grid.slots || bins.load(rank) + samples.cost[i] > targets[rank] ||
                      bins.tokens(rank) + samples.tokens[i] > rank_cap)) {
      ++rank;
      slots = 0;
    }
    if (rank == grid.ranks || samples.tokens[i] > rank_cap) return false;
    if (slots++ == 0) targets[rank] = most_work(end, samples.cost[i], grid);
    bins.add(i, rank);
  }
  const std::uint32_t gathered = slots > 0 ? rank + 1 : rank;
  // The targets are the most; what is done in all is less.
  const Wide most = std::accumulate(targets.begin(), targets.end(), Wide{0});
  const auto spare = static_cast<std::int64_t>((most - sum(samples.cost)) / grid.ranks);
  for (std::int64_t& target : targets) target -= spare;
  if (place(bins, order.subspan(heavy), targets, rank_cap) > 0) return false;
  if (refined) {
    refine(bins, targets, gathered, rank_cap,
           {.passes = 64,
            .work = 32768 + 16 * samples.size(),
            .patience = 6,
            .tolerance = targets.back() / 16384,
            .alike = alike(samples, order, bins.count())});
  }
  const std::vector<std::vector<std::uint32_t>> mine = by_rank(order, bins);
  for (std::uint32_t r = 0; r < grid.ranks; ++r) {
    const std::int64_t mean = bins.load(r) / grid.slots;
    const std::int64_t heaviest = mine[r].empty() ? 0 : samples.cost[mine[r].front()];
    const Effort effort{.passes = refined ? 16U : 0U,
                        .work = 1024 + 16 * mine[r].size(),
                        .patience = 3,
                        .tolerance = std::max(mean / 4096, heaviest - mean)};
    if (!lay_out_rank(out, samples, mine[r], r, grid, effort)) return false;
  }
  return true;
}

}  // namespace

Schedule pipeline(const Step& step) {
  const auto& [samples, order, grid, refined, closed] = step;
  if (grid.stages == 1) return free_running(step);
  // Microbatches that are all alike make equal ranks, too.
  Schedule out = makespan(step, false);
  out.bound = pipeline_bound(samples, order, grid);
  std::vector<std::int64_t> loads = loads_of(out, samples, grid);
  out.value = length_of(loads, grid);
  const std::int64_t most = std::max(out.value, out.bound + 1);
  const std::int64_t apart = divide_up(most - out.bound, kEnds);
  const std::int64_t even = out.bound / (grid.slots + grid.stages - 1);
  const bool sticks_out = !order.empty() && samples.cost[order[0]] > even;
  std::size_t looks = 0;
  for (std::int64_t end = out.bound; end < most && looks < kLooks; end += apart) {
    const bool far = out.unplaced > 0 || out.value - out.bound > out.bound / kFarPart;
    if (!far && (!sticks_out || end > out.bound)) break;
    looks += samples.size();
    Schedule gathered(samples.size());
    // Few and long samples may not fit into the slots of a full rank: try with fewer tokens.
    std::int64_t room = rank_room(grid);
    int tries = kRooms;
    for (; tries > 0 && !gather(step, end, room, gathered); --tries) room -= room / 8;
    if (tries == 0) continue;
    std::vector<std::int64_t> others = loads_of(gathered, samples, grid);
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
