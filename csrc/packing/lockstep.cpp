#include <algorithm>
#include <utility>

#include "packing/align.hpp"
#include "packing/bound.hpp"
#include "packing/long_slots.hpp"
#include "packing/objectives.hpp"
#include "packing/peel.hpp"
#include "packing/profile.hpp"

namespace flowtrain::packing {
namespace {

constexpr std::uint32_t kRounds = 4;
// Part of a plan's value: what is nearer to the bound needs no better one.
constexpr std::int64_t kNearPart = 1024;

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

struct Plan {
  Bins bins;
  std::vector<std::uint32_t> aligned;
  std::int64_t value;
};

/// Refines, and sorts bins into slots.
Plan finish(Bins bins, std::span<const std::int64_t> targets, std::uint32_t long_bins,
            const Step& step) {
  const auto& [samples, order, grid, refined, closed] = step;
  if (refined) {
    const std::int64_t tolerance = sum(samples.cost) / grid.bins() / 2048;
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
  std::vector<std::uint32_t> aligned = align(bins.loads());
  const std::int64_t value = lockstep_cost(bins.loads(), aligned, grid.ranks);
  return {std::move(bins), std::move(aligned), value};
}

}  // namespace

Schedule lockstep(const Step& step) {
  const auto& [samples, order, grid, refined, closed] = step;
  Schedule out(samples.size());
  std::vector<std::int64_t> targets = bin_targets(slot_targets(samples, order, grid), grid);
  std::uint32_t long_bins = 0;
  while (targets[long_bins] > targets.back() + targets.back() / 512) ++long_bins;
  Bins bins = fill(samples, order, targets, grid.token_cap, step.overflow(), &out.unplaced);
  Plan plan = finish(std::move(bins), targets, long_bins, step);
  out.bound =
      lockstep_bound(samples, order, grid, refined ? plan.value - plan.value / kNearPart : 0);
  if (refined && long_bins > 0 && plan.value - out.bound > out.bound / kFarPart) {
    Peeled peeled = peel(samples, order, grid);
    Plan other = finish(std::move(peeled.bins), peeled.targets, peeled.long_bins, step);
    if (peeled.unplaced <= out.unplaced && other.value < plan.value) {
      plan = std::move(other);
      out.unplaced = peeled.unplaced;
    }
  }
  lay_out(out, plan.bins, plan.aligned, grid.ranks);
  out.value = plan.value;
  return out;
}

}  // namespace flowtrain::packing
