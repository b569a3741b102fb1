#include <algorithm>
#include <optional>
#include <utility>

#include "packing/align.hpp"
#include "packing/crowd.hpp"
#include "packing/objectives.hpp"
#include "packing/regroup.hpp"

namespace flowtrain::packing {
namespace {

/// Work that a step may take on top of its refinement.
std::uint64_t extra_work(std::size_t samples) {
  constexpr std::uint64_t kMost = std::uint64_t{1} << 18;  // About 2 ms.
  return std::min<std::uint64_t>(32768 + 64 * samples, kMost);
}

std::int64_t heaviest(const Bins& bins) {
  return *std::max_element(bins.loads().begin(), bins.loads().end());
}

/// Bins of which the last hold the crowd, evened out by themselves before all are; none where the
/// cap forbids it. What that takes is taken from `work`.
std::optional<Bins> part_crowd(const Step& step, const Crowd& crowd,
                               std::span<const std::int64_t> targets, Effort effort,
                               std::int64_t tolerance, std::uint64_t& work) {
  const std::int64_t cap = step.grid.token_cap;
  Bins bins(step.samples, step.grid.bins());
  if (place_crowd(bins, step.order, crowd, cap) > 0) return std::nullopt;
  for (const auto& [first, excess] :
       {std::pair{bins.count() - crowd.bins, tolerance},
        std::pair{0U, std::max(tolerance, crowd.bound - targets[0])}}) {
    effort.work = work;
    effort.tolerance = excess;
    work -= std::min(work, refine(bins, targets, first, cap, effort));
  }
  return bins;
}

}  // namespace

Schedule makespan(const Step& step, bool thorough) {
  const auto& [samples, order, grid, refined, closed] = step;
  Schedule out(samples.size());
  const Crowd crowd = find_crowd(samples, order, grid.bins());
  out.bound = crowd.bound;
  const std::int64_t mean = sum(samples.cost) / grid.bins();
  const std::vector<std::int64_t> targets(grid.bins(), mean);
  Bins bins = fill(samples, order, targets, grid.token_cap, step.overflow(), &out.unplaced);
  if (refined) {
    const std::int64_t tolerance = mean / 4096, enough = out.bound + tolerance;
    const Effort effort{.passes = 64,
                        .work = 32768 + 40 * samples.size(),
                        .patience = 6,
                        // Nothing is gained below the bound; a crowd's is left to those parted.
                        .tolerance = std::max(tolerance, crowd.hole - mean),
                        .alike = alike(samples, order, bins.count())};
    std::uint64_t extra = extra_work(samples.size());
    std::optional<Bins> parted;
    if (thorough && crowd.bins > 0 && out.unplaced == 0) {
      parted = part_crowd(step, crowd, targets, effort, tolerance, extra);
    }
    if (!parted || heaviest(*parted) > enough) refine(bins, targets, 0, grid.token_cap, effort);
    if (parted && heaviest(*parted) < heaviest(bins)) bins = *std::move(parted);
    if (thorough) regroup(bins, enough, grid.token_cap, extra);
  }
  const std::vector<std::uint32_t> aligned = align(bins.loads());
  lay_out(out, bins, aligned, grid.ranks);
  out.value = bins.load(aligned.front());
  return out;
}

}  // namespace flowtrain::packing
