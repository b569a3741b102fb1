#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "packing/bins.hpp"

namespace flowtrain::packing {

/// What sets the least cost of the heaviest bin: the mean, the largest sample or, where `bins` is
/// not 0, a crowd of large samples that so many bins must hold.
///
/// Of the j * bins + e largest samples, the q bins that hold more than j hold j * q + e or more;
/// so the heaviest of them costs at least the smallest j * q + e of those samples over q. That is
/// least for some q up to e, and the crowd is of the j and e for which it is most. With e = 1 it is
/// a pigeon hole: j + 1 samples share a bin.
struct Crowd {
  std::int64_t bound = 0;
  std::int64_t hole = 0;  ///< What the bound would be of e = 1 alone.
  std::uint32_t bins = 0;
  std::size_t first = 0;  ///< Of the crowd, in samples by descending cost.
  std::size_t end = 0;    ///< Past its last.
};

/// `order` is samples by descending cost. O(samples log bins), mostly O(samples).
Crowd find_crowd(const Samples& samples, std::span<const std::uint32_t> order, std::uint32_t bins);

/// Puts the crowd evenly into the last bins, and the rest where the bound then leaves most: the
/// small samples first, since the large ones, being about as many everywhere, even them out.
///
/// Returns: how many samples fit nowhere under the cap.
std::size_t place_crowd(Bins& bins, std::span<const std::uint32_t> order, const Crowd& crowd,
                        std::int64_t token_cap);

}  // namespace flowtrain::packing
