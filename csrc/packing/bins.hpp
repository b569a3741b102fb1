#pragma once

#include <cstdint>
#include <span>

#include "packing/problem.hpp"

namespace flowtrain::packing {

/// The bin of each sample, and the load and tokens of each bin.
///
/// Memory:  a list of samples per bin, threaded through one array.
/// Threads: none.
/// Errors:  none. Add only a sample that has no bin.
class Bins {
 public:
  Bins(const Samples& samples, std::uint32_t count)
      : samples_(samples),
        load_(count),
        tokens_(count),
        head_(count, kNone),
        next_(samples.size(), kNone),
        bin_(samples.size(), kNone) {}

  std::uint32_t count() const { return static_cast<std::uint32_t>(load_.size()); }
  const Samples& samples() const { return samples_; }
  std::int64_t load(std::uint32_t bin) const { return load_[bin]; }      ///< Sum of costs.
  std::int64_t tokens(std::uint32_t bin) const { return tokens_[bin]; }  ///< Sum of tokens.
  std::span<const std::int64_t> loads() const { return load_; }
  /// Bin of each sample, kNone where it has none.
  std::span<const std::uint32_t> bin_of() const { return bin_; }

  void add(std::uint32_t sample, std::uint32_t bin) {
    load_[bin] += samples_.cost[sample];
    tokens_[bin] += samples_.tokens[sample];
    next_[sample] = head_[bin];
    head_[bin] = sample;
    bin_[sample] = bin;
  }

  /// Takes a sample out of its bin.
  void remove(std::uint32_t sample) {
    const std::uint32_t bin = bin_[sample];
    load_[bin] -= samples_.cost[sample];
    tokens_[bin] -= samples_.tokens[sample];
    std::uint32_t* link = &head_[bin];
    while (*link != sample) link = &next_[*link];
    *link = next_[sample];
    bin_[sample] = kNone;
  }

  /// Empties a bin; its samples have no bin then.
  void clear(std::uint32_t bin) {
    for (std::uint32_t i = head_[bin]; i != kNone; i = next_[i]) bin_[i] = kNone;
    head_[bin] = kNone;
    load_[bin] = tokens_[bin] = 0;
  }

  /// Calls `visit(sample)` for each sample of a bin, the last added first.
  template <class Visit>
  void each(std::uint32_t bin, Visit visit) const {
    for (std::uint32_t i = head_[bin]; i != kNone; i = next_[i]) visit(i);
  }

 private:
  Samples samples_;
  Vector<std::int64_t> load_;
  Vector<std::int64_t> tokens_;
  Vector<std::uint32_t> head_;
  Vector<std::uint32_t> next_;
  Vector<std::uint32_t> bin_;
};

}  // namespace flowtrain::packing
