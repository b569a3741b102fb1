#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "packing/bins.hpp"
#include "packing/subset_sums.hpp"

namespace flowtrain::packing {

/// How a pair of bins is shared anew.
struct Deal {
  std::int64_t wish;    ///< Load that the first bin should have.
  std::uint32_t free;   ///< Samples or, if alike, bundles of them that may change bins; at most 20.
  std::uint32_t turn;   ///< Which they are, where the bins hold more.
  std::int64_t enough;  ///< Distance from the wish that is not improved on.
  bool alike = false;   ///< Whether many samples are equal, so that they change bins in bundles.
};

struct Shared {
  bool better;
  std::size_t sums;  ///< Work done.
};

/// Shares what two bins hold anew, so that the first comes as near to its wish as can be, and
/// both stay under the cap. Every division of what is free is looked at, by meeting in the middle:
/// 14 samples need 2 x 128 sums.
///
/// Memory:  about 70 KiB, kept from deal to deal.
/// Threads: none.
/// Errors:  none.
///
/// Source: Horowitz and Sahni (1974).
class Sharer {
 public:
  Sharer(Bins& bins, std::int64_t token_cap) : bins_(bins), token_cap_(token_cap) {}

  Shared share(std::uint32_t a, std::uint32_t b, const Deal& deal);

 private:
  void choose_single(const Deal& deal);
  void choose_alike(const Deal& deal);

  Bins& bins_;
  std::int64_t token_cap_;
  std::array<std::vector<std::uint32_t>, 2> kept_;  ///< Of each bin: samples that stay.
  std::vector<std::uint32_t> free_;                 ///< The others, bundle by bundle.
  std::vector<std::uint32_t> bundles_;              ///< Number of samples of each.
  std::array<SubsetSums, 2> half_;                  ///< Of every other bundle.
};

}  // namespace flowtrain::packing
