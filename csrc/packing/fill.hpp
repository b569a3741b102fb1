#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "packing/bins.hpp"
#include "packing/refine.hpp"
#include "packing/schedule.hpp"

namespace flowtrain::packing {

/// What objectives have in common: from samples to bins, and from bins to slots and ranks.

using Order = std::span<const std::uint32_t>;

std::int64_t sum(std::span<const std::int64_t> values);

/// Tokens that a rank may be given before they are packed into its slots, which loses a little room
/// to their lengths.
std::int64_t rank_room(const Grid& grid);

/// What to do with samples that find no room in bins filled towards their targets.
enum class Overflow {
  kLeave,   ///< They have no bin.
  kPack,    ///< Pack all samples tightly, longest first.
  kSearch,  ///< Then, search for bins that hold all: see search.hpp.
};

/// Bins near their targets, or packed by tokens alone where that places more samples. `unplaced`
/// becomes the number of samples that have no bin.
Bins fill(const Samples& samples, Order order, std::span<const std::int64_t> targets,
          std::int64_t token_cap, Overflow overflow, std::size_t* unplaced);

/// Whether so few kinds of samples are there that a pair of bins holds equal ones.
bool alike(const Samples& samples, Order order, std::uint32_t bins);

/// Slot and rank of each sample, where bins, as `align` orders them, are dealt slot by slot.
void lay_out(Schedule& out, const Bins& bins, std::span<const std::uint32_t> aligned,
             std::uint32_t ranks);

/// Slot of each sample of one rank, heaviest slot first, evened out under the cap with an effort.
///
/// Args: `mine` is the rank's samples by descending cost.
/// Returns: false where they do not fit.
bool lay_out_rank(Schedule& out, const Samples& samples, std::span<const std::uint32_t> mine,
                  std::uint32_t rank, const Grid& grid, const Effort& effort);

/// Samples of each rank, by descending cost.
std::vector<std::vector<std::uint32_t>> by_rank(Order order, const Bins& bins);

}  // namespace flowtrain::packing
