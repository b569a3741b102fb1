#include "packing/schedule.hpp"

#include <algorithm>
#include <numeric>
#include <span>

#include "packing/align.hpp"
#include "packing/bins.hpp"
#include "packing/bound.hpp"
#include "packing/long_slots.hpp"
#include "packing/order.hpp"
#include "packing/place.hpp"
#include "packing/profile.hpp"
#include "packing/refine.hpp"

namespace flowtrain::packing {
namespace {

using Order = std::span<const std::uint32_t>;

constexpr std::uint32_t kRounds = 4;

std::int64_t sum(std::span<const std::int64_t> values) {
  return std::accumulate(values.begin(), values.end(), std::int64_t{0});
}

/// Bins near their targets or, where balance uses up the room, packed tightly, longest first.
Bins fill(const Samples& samples, Order order, std::span<const std::int64_t> targets,
          std::int64_t token_cap, bool closed, std::size_t* unplaced) {
  const auto count = static_cast<std::uint32_t>(targets.size());
  Bins bins(samples, count);
  *unplaced = place(bins, order, targets, token_cap);
  if (*unplaced == 0 || !closed) return bins;
  Bins tight(samples, count);
  const std::size_t missing = place_tightly(tight, order_descending(samples.tokens), token_cap);
  if (missing >= *unplaced) return bins;
  *unplaced = missing;
  return tight;
}

/// Whether so few kinds of samples are there that a pair of bins holds equal ones.
bool alike(const Samples& samples, Order order, std::uint32_t bins) {
  std::size_t kinds = 1;
  for (std::size_t k = 1; k < order.size(); ++k) {
    kinds += samples.cost[order[k]] != samples.cost[order[k - 1]] ||
             samples.tokens[order[k]] != samples.tokens[order[k - 1]];
  }
  return kinds * bins <= 2 * order.size();
}

/// Slot and rank of each sample, where bins are aligned and dealt slot by slot.
void lay_out(Schedule& out, const Bins& bins, std::uint32_t ranks) {
  const std::vector<std::uint32_t> aligned = align(bins.loads());
  const std::vector<std::uint32_t> dealt = deal_ranks(bins.loads(), aligned, ranks);
  std::vector<std::uint32_t> at(aligned.size());
  for (std::size_t i = 0; i < aligned.size(); ++i) at[aligned[i]] = static_cast<std::uint32_t>(i);
  for (std::size_t i = 0; i < out.slot.size(); ++i) {
    const std::uint32_t bin = bins.bin_of()[i];
    out.slot[i] = bin == kNone ? -1 : static_cast<std::int32_t>(at[bin] / ranks);
    out.rank[i] = bin == kNone ? -1 : static_cast<std::int32_t>(dealt[at[bin]]);
  }
}

std::vector<std::int64_t> bin_targets(std::span<const std::int64_t> slots, const Grid& grid) {
  std::vector<std::int64_t> targets(grid.bins());
  for (std::uint32_t b = 0; b < grid.bins(); ++b) targets[b] = slots[b / grid.ranks];
  return targets;
}

/// Targets from what bins are: in aligned slots, the mean of the slot. Where sizes do not let all
/// bins be equal, few slots are longer then, and the others shorter.
std::vector<std::int64_t> slot_means(const Bins& bins, std::uint32_t ranks) {
  const std::vector<std::uint32_t> aligned = align(bins.loads());
  std::vector<std::int64_t> targets(bins.count());
  for (std::size_t first = 0; first < aligned.size(); first += ranks) {
    std::int64_t sum = 0;
    for (std::size_t k = first; k < first + ranks; ++k) sum += bins.load(aligned[k]);
    for (std::size_t k = first; k < first + ranks; ++k) targets[aligned[k]] = sum / ranks;
  }
  return targets;
}

/// Refines all but the long bins, in rounds: each towards what the slots then are.
void even_out_slots(Bins& bins, std::span<const std::int64_t> targets, std::uint32_t long_bins,
                    const Grid& grid, const Effort& effort) {
  std::uint64_t done = 0;
  for (std::uint32_t k = 1; k <= kRounds; ++k) {
    Effort round = effort;
    round.work = effort.work / kRounds * k;
    if (done >= round.work) continue;
    round.work -= done;
    // What the long bins gave and took is made up for before anything else.
    const bool first = k == 1 && long_bins > 0;
    const std::vector<std::int64_t> means = slot_means(bins, grid.ranks);
    done += refine(bins, first ? targets : means, long_bins, grid.token_cap, round);
  }
}

Schedule lockstep(const Samples& samples, Order order, const Grid& grid, bool refined,
                  bool closed) {
  Schedule out(samples.size());
  const std::vector<std::int64_t> targets = bin_targets(slot_targets(samples, order, grid), grid);
  Bins bins = fill(samples, order, targets, grid.token_cap, closed, &out.unplaced);
  if (refined) {
    const std::int64_t tolerance = sum(samples.cost) / grid.bins() / 2048;
    std::uint32_t long_bins = 0;
    while (targets[long_bins] > targets.back() + targets.back() / 512) ++long_bins;
    std::uint64_t work = 16384 + 20 * samples.size();
    if (long_bins > 0) {
      const std::uint64_t done =
          fill_long_bins(bins, order, targets, long_bins, grid.token_cap, tolerance);
      // At least some, since what the long bins gave and took is not yet even.
      work = std::max(work / 3, work - std::min(work, done));
    }
    const Effort effort{.passes = 64,
                        .work = work,
                        .patience = 3,
                        .tolerance = tolerance,
                        .alike = alike(samples, order, bins.count())};
    even_out_slots(bins, targets, long_bins, grid, effort);
  }
  lay_out(out, bins, grid.ranks);
  out.value = lockstep_cost(bins.loads(), align(bins.loads()), grid.ranks);
  out.bound = lockstep_bound(samples, order, grid);
  return out;
}

Schedule makespan(const Samples& samples, Order order, const Grid& grid, bool refined,
                  bool closed) {
  Schedule out(samples.size());
  out.bound = makespan_bound(samples, order, grid.bins());
  const std::int64_t mean = sum(samples.cost) / grid.bins();
  const std::vector<std::int64_t> targets(grid.bins(), mean);
  Bins bins = fill(samples, order, targets, grid.token_cap, closed, &out.unplaced);
  if (refined) {
    refine(bins, targets, 0, grid.token_cap,
           {.passes = 64,
            .work = 32768 + 40 * samples.size(),
            .patience = 6,
            // Nothing is gained below the bound.
            .tolerance = std::max(mean / 4096, out.bound - mean),
            .alike = alike(samples, order, bins.count())});
  }
  lay_out(out, bins, grid.ranks);
  out.value = *std::max_element(bins.loads().begin(), bins.loads().end());
  return out;
}

/// Slots of one rank, balanced under the cap; false where its samples do not fit.
bool lay_out_rank(Schedule& out, const Samples& samples, std::span<const std::uint32_t> mine,
                  std::uint32_t rank, const Grid& grid) {
  std::vector<std::int64_t> tokens, cost;
  for (const std::uint32_t i : mine) {
    tokens.push_back(samples.tokens[i]);
    cost.push_back(samples.cost[i]);
  }
  const Samples own{tokens, cost};
  std::vector<std::uint32_t> order(mine.size());
  std::iota(order.begin(), order.end(), 0U);  // They come by descending cost.
  const std::vector<std::int64_t> targets(grid.slots, sum(cost) / grid.slots);
  std::size_t unplaced = 0;
  const Bins bins = fill(own, order, targets, grid.token_cap, true, &unplaced);
  if (unplaced > 0) return false;
  const std::vector<std::uint32_t> aligned = align(bins.loads());
  std::vector<std::int32_t> slot(grid.slots);
  for (std::uint32_t m = 0; m < grid.slots; ++m) slot[aligned[m]] = static_cast<std::int32_t>(m);
  for (std::size_t k = 0; k < mine.size(); ++k) {
    out.slot[mine[k]] = slot[bins.bin_of()[k]];
    out.rank[mine[k]] = static_cast<std::int32_t>(rank);
  }
  return true;
}

Schedule free_running(const Samples& samples, Order order, const Grid& grid, bool refined,
                      bool closed) {
  Schedule out(samples.size());
  out.bound = makespan_bound(samples, order, grid.ranks);
  const std::int64_t mean = sum(samples.cost) / grid.ranks;
  const std::vector<std::int64_t> targets(grid.ranks, mean);
  // Packed into slots, a rank's tokens lose a little room to their lengths.
  const std::int64_t rank_cap = grid.token_cap * grid.slots / 50 * 49;
  Bins bins(samples, grid.ranks);
  bool fits = place(bins, order, targets, rank_cap) == 0;
  if (fits && refined) {
    refine(bins, targets, 0, rank_cap,
           {.passes = 64,
            .work = 131072 + 32 * samples.size(),
            .patience = 24,
            .tolerance = mean / 65536,
            .alike = alike(samples, order, bins.count())});
  }
  std::vector<std::vector<std::uint32_t>> mine(grid.ranks);
  for (const std::uint32_t i : order) {
    if (fits) mine[bins.bin_of()[i]].push_back(i);
  }
  for (std::uint32_t r = 0; r < grid.ranks && fits; ++r) {
    fits = lay_out_rank(out, samples, mine[r], r, grid);
  }
  if (!fits) {
    // Tokens are too tight for ranks first: microbatches first, then.
    const std::int64_t bound = out.bound;
    out = lockstep(samples, order, grid, refined, closed);
    out.bound = bound;
  }
  std::vector<std::int64_t> sums(grid.ranks);
  for (std::size_t i = 0; i < samples.size(); ++i) {
    if (out.rank[i] >= 0) sums[static_cast<std::size_t>(out.rank[i])] += samples.cost[i];
  }
  out.value = *std::max_element(sums.begin(), sums.end());
  return out;
}

}  // namespace

Schedule schedule(const Samples& samples, const Grid& grid, Objective objective, bool refined,
                  bool closed) {
  const std::vector<std::uint32_t> order = order_by_cost(samples);
  switch (objective) {
    case Objective::kLockstep: return lockstep(samples, order, grid, refined, closed);
    case Objective::kFree: return free_running(samples, order, grid, refined, closed);
    case Objective::kMakespan: return makespan(samples, order, grid, refined, closed);
  }
  return Schedule(samples.size());
}

std::int64_t bound(const Samples& samples, const Grid& grid, Objective objective) {
  const std::vector<std::uint32_t> order = order_by_cost(samples);
  switch (objective) {
    case Objective::kLockstep: return lockstep_bound(samples, order, grid);
    case Objective::kFree: return makespan_bound(samples, order, grid.ranks);
    case Objective::kMakespan: return makespan_bound(samples, order, grid.bins());
  }
  return 0;
}

}  // namespace flowtrain::packing
