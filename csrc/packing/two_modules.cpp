#include "packing/two_modules.hpp"

#include <algorithm>
#include <array>
#include <bit>
#include <numeric>

#include "packing/bound.hpp"
#include "packing/order.hpp"
#include "packing/search.hpp"

namespace flowtrain::packing {
namespace {

constexpr std::size_t kMovable = 10;
constexpr std::size_t kSubsets = std::size_t{1} << kMovable;

/// What an exchange takes from one bin to another.
struct Moved {
  std::int64_t backbone = 0;
  std::int64_t encoder = 0;
  std::int64_t tokens = 0;
};

struct Bin {
  std::int64_t backbone = 0;
  std::int64_t encoder = 0;
  std::int64_t tokens = 0;
  std::vector<std::uint32_t> samples;

  std::int64_t longest() const { return std::max(backbone, encoder); }
  std::int64_t longest_after(const Moved& moved, int sign) const {
    return std::max(backbone + sign * moved.backbone, encoder + sign * moved.encoder);
  }
};

class TwoModules {
 public:
  TwoModules(const Samples& samples, std::span<const std::int64_t> encoder, const Grid& grid)
      : samples_(samples),
        encoder_(encoder),
        cap_(grid.max_tokens),
        bins_(grid.bins()),
        held_(samples.size()) {}

  /// Returns: whether all samples fit.
  bool place() {
    bool fit = true;
    std::vector<std::int64_t> longer(samples_.size());
    for (std::size_t i = 0; i < longer.size(); ++i) {
      longer[i] = std::max(samples_.cost[i], encoder_[i]);
    }
    for (const std::uint32_t i : order_descending(longer)) {
      std::uint32_t best = kNone;
      std::int64_t lowest = INT64_MAX;
      for (std::uint32_t b = 0; b < bins_.size(); ++b) {
        if (bins_[b].tokens + samples_.tokens[i] > cap_) continue;
        const std::int64_t longest =
            std::max(bins_[b].backbone + samples_.cost[i], bins_[b].encoder + encoder_[i]);
        if (longest < lowest) lowest = longest, best = b;
      }
      fit = fit && best != kNone;
      if (best != kNone) add(bins_[best], i);
    }
    return fit;
  }

  void put(std::span<const std::uint32_t> bin_of) {
    for (Bin& bin : bins_) bin = {};
    for (std::uint32_t i = 0; i < bin_of.size(); ++i) add(bins_[bin_of[i]], i);
  }

  void pair_up(std::uint32_t round) {
    std::vector<std::int64_t> longest(bins_.size());
    for (std::size_t b = 0; b < bins_.size(); ++b) longest[b] = bins_[b].longest();
    const Vector<std::uint32_t> sorted = order_descending(longest);
    const std::size_t half = sorted.size() / 2;
    for (std::size_t i = 0; i < half; ++i) {
      Bin& high = bins_[sorted[i]];
      Bin& low = bins_[sorted[sorted.size() - 1 - (i + round) % half]];
      share(high, low, round);
    }
  }

  /// Exchanges up to one sample each way between the bin with the largest load and another, such
  /// that the larger load of the two is lowest or, where that stays, the sum of their squares.
  ///
  /// Returns: whether any exchange is better than none.
  bool relieve_worst() {
    Bin& a = worst();
    std::int64_t lowest = a.longest();
    double best = 0;
    return exchange(a, [&](const Bin& b, const Moved& moved) {
      const std::int64_t longest = std::max(a.longest_after(moved, -1), b.longest_after(moved, 1));
      if (longest > lowest) return false;
      const double squares = growth(moved.backbone, b.backbone - a.backbone) +
                             growth(moved.encoder, b.encoder - a.encoder);
      if (longest == lowest && squares >= best) return false;
      lowest = longest;
      best = squares;
      return true;
    });
  }

  /// Relieves the worst bin at the lowest cost to another, which may be the worst then; what was
  /// exchanged stays where it is until `let_go`, or it would come straight back.
  ///
  /// Returns: whether there was any such exchange.
  bool kick() {
    Bin& a = worst();
    const std::int64_t before = a.longest();
    std::int64_t lowest = INT64_MAX;
    return exchange(
        a,
        [&](const Bin& b, const Moved& moved) {
          const std::int64_t longest = b.longest_after(moved, 1);
          if (longest >= lowest || a.longest_after(moved, -1) >= before) return false;
          lowest = longest;
          return true;
        },
        true);
  }

  void let_go() { std::fill(held_.begin(), held_.end(), false); }

  /// Divides the worst bin and each other bin anew, if no single exchange helps.
  ///
  /// Returns: whether its largest load is less.
  bool share_worst(std::uint32_t round) {
    Bin& a = worst();
    const std::int64_t before = a.longest();
    for (Bin& b : bins_) {
      if (&b != &a) share(a, b, round);
    }
    return worst().longest() < before;
  }

  std::vector<std::uint32_t> bin_of() const {
    std::vector<std::uint32_t> out(samples_.size(), kNone);
    for (std::uint32_t b = 0; b < bins_.size(); ++b) {
      for (const std::uint32_t i : bins_[b].samples) out[i] = b;
    }
    return out;
  }

  std::int64_t longest() { return worst().longest(); }
  std::uint64_t work() const { return work_; }

 private:
  /// Applies the last exchange of `a` with another bin that `better(bin, moved)` accepts.
  template <class Better>
  bool exchange(Bin& a, Better better, bool hold = false) {
    work_ += a.samples.size() * (samples_.size() + bins_.size());
    Bin* other = nullptr;
    std::uint32_t gives = kNone, takes = kNone;
    for (Bin& b : bins_) {
      if (&b == &a) continue;
      for (const std::uint32_t out : a.samples) {
        if (held_[out]) continue;
        const Moved given{samples_.cost[out], encoder_[out], samples_.tokens[out]};
        const auto look = [&](std::uint32_t in, const Moved& moved) {
          if (a.tokens - moved.tokens > cap_ || b.tokens + moved.tokens > cap_) return;
          if (better(b, moved)) other = &b, gives = out, takes = in;
        };
        look(kNone, given);
        for (const std::uint32_t in : b.samples) {
          if (held_[in]) continue;
          look(in, {given.backbone - samples_.cost[in], given.encoder - encoder_[in],
                    given.tokens - samples_.tokens[in]});
        }
      }
    }
    if (other == nullptr) return false;
    remove(a, gives);
    add(*other, gives);
    held_[gives] = hold;
    if (takes == kNone) return true;
    remove(*other, takes);
    add(a, takes);
    held_[takes] = hold;
    return true;
  }

  Bin& worst() { return *std::ranges::max_element(bins_, {}, &Bin::longest); }

  void add(Bin& bin, std::uint32_t i) {
    bin.backbone += samples_.cost[i];
    bin.encoder += encoder_[i];
    bin.tokens += samples_.tokens[i];
    bin.samples.push_back(i);
  }

  void remove(Bin& bin, std::uint32_t i) {
    bin.backbone -= samples_.cost[i];
    bin.encoder -= encoder_[i];
    bin.tokens -= samples_.tokens[i];
    bin.samples.erase(std::find(bin.samples.begin(), bin.samples.end(), i));
  }

  /// Half of what the squares of two loads grow by if `moved` goes from one to another that is
  /// larger by `apart`.
  static double growth(std::int64_t moved, std::int64_t apart) {
    return static_cast<double>(moved) * static_cast<double>(apart + moved);
  }

  /// The sixteenth power: lower ones take many small excesses for a large one.
  static double power(double x) {
    for (int k = 0; k < 4; ++k) x *= x;
    return x;
  }

  void share(Bin& a, Bin& b, std::uint32_t round) {
    // The last samples are movable: every sample is among them in some round.
    for (Bin* bin : {&a, &b}) {
      const std::size_t count = bin->samples.size();
      const std::size_t shift = count > kMovable / 2 ? round % count : 0;
      std::rotate(bin->samples.begin(), bin->samples.begin() + static_cast<std::ptrdiff_t>(shift),
                  bin->samples.end());
    }
    const std::size_t from_a = std::min(
        a.samples.size(), std::max(kMovable / 2, kMovable - std::min(kMovable, b.samples.size())));
    const std::size_t from_b = std::min(b.samples.size(), kMovable - from_a);
    std::array<std::uint32_t, kMovable> movable;
    std::copy_n(a.samples.rbegin(), from_a, movable.begin());
    std::copy_n(b.samples.rbegin(), from_b, movable.begin() + static_cast<std::ptrdiff_t>(from_a));
    const std::size_t count = from_a + from_b;

    // Loads of `a` with each subset of the movable samples: every sample doubles their number.
    std::array<double, kSubsets> one, other;
    std::array<std::int64_t, kSubsets> held;
    const std::int64_t backbone = a.backbone + b.backbone, encoder = a.encoder + b.encoder;
    const double scale =
        2.0 / static_cast<double>(std::max<std::int64_t>(1, std::max(backbone, encoder)));
    Bin kept{a.backbone, a.encoder, a.tokens, {}};
    for (std::size_t k = 0; k < from_a; ++k) {
      kept.backbone -= samples_.cost[movable[k]];
      kept.encoder -= encoder_[movable[k]];
      kept.tokens -= samples_.tokens[movable[k]];
    }
    one[0] = static_cast<double>(kept.backbone) * scale;
    other[0] = static_cast<double>(kept.encoder) * scale;
    held[0] = kept.tokens;
    const std::size_t subsets = std::size_t{1} << count;
    work_ += subsets;
    for (std::size_t k = 0, half = 1; k < count; ++k, half *= 2) {
      const double cost = static_cast<double>(samples_.cost[movable[k]]) * scale;
      const double work = static_cast<double>(encoder_[movable[k]]) * scale;
      const std::int64_t tokens = samples_.tokens[movable[k]];
      for (std::size_t subset = 0; subset < half; ++subset) {
        one[half + subset] = one[subset] + cost;
        other[half + subset] = other[subset] + work;
        held[half + subset] = held[subset] + tokens;
      }
    }
    const double both = static_cast<double>(backbone) * scale;
    const double rest = static_cast<double>(encoder) * scale;
    std::array<double, kSubsets> rating;
    for (std::size_t subset = 0; subset < subsets; ++subset) {
      rating[subset] = power(one[subset]) + power(other[subset]) + power(both - one[subset]) +
                       power(rest - other[subset]);
    }
    const std::size_t start = (std::size_t{1} << from_a) - 1;
    std::size_t best_subset = start;
    const std::int64_t min_tokens = a.tokens + b.tokens - cap_;
    for (std::size_t subset = 0; subset < subsets; ++subset) {
      if (rating[subset] < rating[best_subset] && held[subset] <= cap_ &&
          held[subset] >= min_tokens) {
        best_subset = subset;
      }
    }
    if (best_subset == start) return;
    for (auto [bin, taken] : {std::pair{&a, from_a}, std::pair{&b, from_b}}) {
      bin->samples.resize(bin->samples.size() - taken);
      const std::vector<std::uint32_t> kept = std::move(bin->samples);
      *bin = {};
      for (const std::uint32_t i : kept) add(*bin, i);
    }
    for (std::size_t k = 0; k < count; ++k) add((best_subset >> k & 1U) ? a : b, movable[k]);
  }

  const Samples& samples_;
  std::span<const std::int64_t> encoder_;
  std::int64_t cap_;
  std::vector<Bin> bins_;
  std::vector<std::uint8_t> held_;  ///< Samples that exchanges leave where they are.
  std::uint64_t work_ = 0;
};

}  // namespace

std::vector<std::uint32_t> balance_two(const Samples& samples,
                                       std::span<const std::int64_t> encoder, const Grid& grid,
                                       std::uint32_t rounds, std::uint64_t work) {
  TwoModules modules(samples, encoder, grid);
  if (!modules.place() && work > 0) {
    const Search search = search_bins(samples.tokens, grid.bins(), grid.max_tokens);
    if (!search.bin_of.empty()) modules.put(search.bin_of);
  }
  for (std::uint32_t round = 0; round < rounds; ++round) modules.pair_up(round);
  std::int64_t bound = 0;
  for (const auto cost : {samples.cost, encoder}) {
    const Samples module{samples.tokens, cost};
    bound = std::max(bound, max_bin_bound(module, order_by_cost(module), grid.bins()));
  }
  std::int64_t lowest = modules.longest();
  std::vector<std::uint32_t> best = modules.bin_of();
  for (std::uint32_t round = 0; modules.work() < work && lowest > bound; ++round) {
    if (!modules.relieve_worst() && !modules.kick() && !modules.share_worst(round)) break;
    if (modules.longest() >= lowest) continue;
    lowest = modules.longest();
    best = modules.bin_of();
    modules.let_go();
  }
  return best;
}

}  // namespace flowtrain::packing
