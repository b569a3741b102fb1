#pragma once

#include <cstddef>
#include <cstdint>

#include "packing/bins.hpp"

namespace flowtrain::packing {

/// How a pair of bins is shared anew.
struct Deal {
  std::int64_t wish;    ///< Load that the first bin should have.
  std::uint32_t free;   ///< Samples that may change bins, at most 14.
  std::uint32_t turn;   ///< Which they are, where the bins hold more.
  std::int64_t enough;  ///< Distance from the wish that is not improved on.
};

struct Shared {
  bool better;
  std::size_t sums;  ///< Work done.
};

/// Shares what two bins hold anew, so that the first comes as near to its wish as can be, and
/// both stay under the cap. Every division of the free samples is looked at, by meeting in the
/// middle of 2 x 128 sums.
///
/// Source: Horowitz and Sahni (1974).
Shared share_anew(Bins& bins, std::uint32_t a, std::uint32_t b, std::int64_t token_cap,
                  const Deal& deal);

}  // namespace flowtrain::packing
