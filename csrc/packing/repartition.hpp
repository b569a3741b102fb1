#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "packing/bins.hpp"
#include "packing/subset_sums.hpp"

namespace flowtrain::packing {

/// How two bins divide their samples anew.
struct Division {
  std::int64_t target;     ///< Load that the first bin should have.
  std::uint32_t movable;   ///< Bundles that may change bins, at most 20.
  std::uint32_t offset;    ///< Which they are, where the bins hold more.
  std::int64_t tolerance;  ///< Distance from the target that is not improved on.
};

/// Result of a division.
struct Divided {
  bool better;       ///< Whether the first bin is nearer to its target; else nothing has changed.
  std::size_t sums;  ///< Work done: sums of subsets that were formed.
};

/// Divides the samples of two bins anew, so that the first comes as near to its target as can be,
/// and both stay under the cap. Equal samples change bins in bundles of 1, 2, 4 ...; every division
/// of the bundles is considered, by meeting in the middle: 14 need 2 x 128 sums.
///
/// In rigid coupling the target is half the load of both bins, and the largest load of one module
/// in one bin is made small instead: of the divisions next to the target, the best is taken.
///
/// Memory:  about 70 KiB, kept from one call to the next.
/// Threads: none.
/// Errors:  none.
///
/// Source: Horowitz and Sahni (1974).
class Repartitioner {
 public:
  Repartitioner(Bins& bins, std::int64_t max_tokens) : bins_(bins), max_tokens_(max_tokens) {}

  Divided divide(std::uint32_t a, std::uint32_t b, const Division& division);

 private:
  struct Entry {
    std::int64_t cost, tokens;
    std::uint32_t sample, bin;
    bool stays;
  };
  struct Bundle {
    std::size_t begin, size;
  };

  /// Of both bins `a` and `b`; kept: of the samples that stay in `a`.
  struct Loads {
    std::int64_t cost = 0, tokens = 0;
    std::int64_t kept_cost = 0, kept_tokens = 0;
    std::int64_t encoder = 0, encoder_of_a = 0, kept_encoder = 0;  ///< 0 without an encoder.
  };
  /// What a search looks for among the movable samples.
  struct Goal {
    std::int64_t wanted;                  ///< Cost that `a` should get of them.
    std::int64_t min_tokens, max_tokens;  ///< Of those that `a` gets.
    std::int64_t tolerance;               ///< Rating that is not improved on.
    std::int64_t rating;                  ///< Of the division so far.
    int shift;                            ///< Of the rounded costs.
  };
  /// A division: of either half, the sum whose bundles `a` gets.
  struct Choice {
    std::int64_t rating;
    std::size_t first, second;
  };

  void list_samples(std::uint32_t a, std::uint32_t b);
  void choose_bundles(std::uint32_t a, const Division& division);
  Loads loads_of(std::uint32_t a, std::uint32_t b) const;
  int form_sums(std::int64_t cost);
  template <class Rate>
  Choice search(const Goal& goal, Rate rate) const;
  void assign(std::uint32_t a, std::uint32_t b, const Choice& choice);

  Bins& bins_;
  std::int64_t max_tokens_;
  std::vector<Entry> entries_;                        ///< Samples of both bins.
  std::array<std::vector<Bundle>, 2> kinds_;          ///< Equal samples, by the bin of the first.
  std::vector<Bundle> bundles_;                       ///< Equal samples that change bins together.
  std::array<SubsetSums, 2> half_;                    ///< Of every other bundle.
  std::array<std::vector<std::int64_t>, 2> encoder_;  ///< The encoder's part, by subset.
};

}  // namespace flowtrain::packing
