#include <algorithm>
#include <compare>
#include <cstdlib>
#include <utility>

#include "packing/bound.hpp"
#include "packing/layout.hpp"
#include "packing/objectives.hpp"
#include "packing/refine.hpp"
#include "packing/repartition.hpp"
#include "packing/search.hpp"
#include "packing/slots.hpp"

namespace flowtrain::packing {
namespace {

constexpr std::uint32_t kRounds = 4;
constexpr std::uint32_t kPartners = 2;  // Of each long bin.
// A plan whose gap is at most its value divided by this needs no better bound.
constexpr std::int64_t kNearDivisor = 1024;

/// Targets from the present loads: for each bin, the mean of its aligned slot. If sizes do not let
/// all bins be equal, few slots are then longer and the others shorter.
std::vector<std::int64_t> slot_means(const Bins& bins, std::uint32_t ranks) {
  const Vector<std::uint32_t> aligned = align(bins);
  std::vector<std::int64_t> targets(bins.count());
  for (std::size_t first = 0; first < aligned.size(); first += ranks) {
    std::int64_t sum = 0;
    for (std::size_t k = first; k < first + ranks; ++k) sum += bins.load(aligned[k]);
    for (std::size_t k = first; k < first + ranks; ++k) targets[aligned[k]] = sum / ranks;
  }
  return targets;
}

/// Brings each long bin nearer to its target, by dividing its samples and those of one of the
/// others anew.
void adjust_long_bins(Slots& slots, std::int64_t max_tokens, std::int64_t tolerance) {
  Bins& bins = slots.bins;
  if (slots.long_bins == bins.count()) return;
  Repartitioner repartitioner(bins, max_tokens);
  std::uint32_t partner = slots.long_bins;
  for (std::uint32_t round = 0; round < kPartners; ++round) {
    for (std::uint32_t b = 0; b < slots.long_bins; ++b) {
      if (std::abs(bins.load(b) - slots.targets[b]) <= tolerance) continue;
      repartitioner.divide(
          b, partner,
          {.target = slots.targets[b], .movable = 12, .offset = round, .tolerance = tolerance});
      if (++partner == bins.count()) partner = slots.long_bins;
    }
  }
}

/// Evens out all but the long bins, in rounds; each round sets the targets from the present loads.
void even_out_slots(Slots& slots, const Grid& grid, const Effort& effort) {
  std::uint64_t done = 0;
  for (std::uint32_t k = 1; k <= kRounds; ++k) {
    Effort round = effort;
    round.work = effort.work / kRounds * k;
    if (done >= round.work) continue;
    round.work -= done;
    // The first round makes up for what the long bins exchanged, so it keeps the targets.
    const bool first = k == 1 && slots.long_bins > 0;
    const auto targets = first ? slots.targets : slot_means(slots.bins, grid.ranks);
    done += refine(slots.bins, targets, slots.long_bins, grid.max_tokens, round);
  }
}

void local_search(Slots& slots, const Step& step) {
  const auto& [samples, order, grid, refined, place_all] = step;
  const std::int64_t tolerance = sum(samples.cost) / grid.bins() / 2048;
  adjust_long_bins(slots, grid.max_tokens, tolerance);
  even_out_slots(
      slots, grid,
      {.passes = 64, .work = 16384 + 12 * samples.size(), .patience = 3, .tolerance = tolerance});
}

/// Less is better, in this order.
struct Rating {
  std::size_t unplaced;  ///< Samples without a bin.
  std::int64_t value;    ///< Sum over the slots of their longest bin.

  auto operator<=>(const Rating&) const = default;
};

Rating rate(const Slots& slots, const Grid& grid) {
  const Vector<std::uint32_t> aligned = align(slots.bins);
  std::int64_t value = 0;
  for (std::size_t k = 0; k < aligned.size(); k += grid.ranks) value += slots.bins.load(aligned[k]);
  return {slots.unplaced, value};
}

}  // namespace

Schedule lockstep(const Step& step) {
  const auto& [samples, order, grid, refined, place_all] = step;
  Slots best = fill_slots(samples, order, grid, Gather::kAboveEven);
  const bool has_long_slots = best.long_bins > 0;
  if (best.unplaced > 0 && place_all && pack_by_tokens(best.bins, grid.max_tokens, true)) {
    best.unplaced = best.long_bins = 0;
  }
  Rating placed = rate(best, grid), found = placed;  // Before and after the local search.
  if (refined) {
    local_search(best, step);
    found = rate(best, grid);
  }
  Schedule out(samples.size());
  const std::int64_t near = found.value - found.value / kNearDivisor;
  out.bound = lockstep_bound(samples, order, grid, refined ? near : 0);
  for (const Gather gather : {Gather::kBinByBin, Gather::kAboveHalf, Gather::kAbove16Times}) {
    const bool far = found.value - out.bound > out.bound / kFarDivisor;
    if (!refined || !has_long_slots || !far) break;
    Slots other = fill_slots(samples, order, grid, gather);
    const Rating other_placed = rate(other, grid);
    if (other_placed >= placed) continue;  // The local search rarely reverses this.
    local_search(other, step);
    const Rating other_found = rate(other, grid);
    if (other_found >= found) continue;
    best = std::move(other);
    placed = other_placed;
    found = other_found;
  }
  lay_out(out, best.bins, grid.ranks);
  out.value = found.value;
  out.unplaced = best.unplaced;
  return out;
}

}  // namespace flowtrain::packing
