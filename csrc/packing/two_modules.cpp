#include "packing/two_modules.hpp"

#include <algorithm>
#include <array>
#include <bit>
#include <numeric>

#include "packing/order.hpp"

namespace flowtrain::packing {
namespace {

constexpr std::size_t kFree = 10;
constexpr std::uint32_t kMostSquarings = 4;
constexpr std::uint32_t kFinalSquarings =
    7;  // Lower powers take many small excesses for a large one.

struct Bin {
  std::int64_t backbone = 0;
  std::int64_t encoder = 0;
  std::int64_t tokens = 0;
  std::vector<std::uint32_t> samples;

  std::int64_t longest() const { return std::max(backbone, encoder); }
};

class TwoModules {
 public:
  TwoModules(const Samples& samples, std::span<const std::int64_t> encoder, const Grid& grid)
      : samples_(samples), encoder_(encoder), cap_(grid.token_cap), bins_(grid.bins()) {}

  void place() {
    std::vector<std::int64_t> longer(samples_.size());
    for (std::size_t i = 0; i < longer.size(); ++i) {
      longer[i] = std::max(samples_.cost[i], encoder_[i]);
    }
    for (const std::uint32_t i : order_descending(longer)) {
      std::uint32_t best = kNone;
      std::int64_t least = INT64_MAX;
      for (std::uint32_t b = 0; b < bins_.size(); ++b) {
        if (bins_[b].tokens + samples_.tokens[i] > cap_) continue;
        const std::int64_t longest =
            std::max(bins_[b].backbone + samples_.cost[i], bins_[b].encoder + encoder_[i]);
        if (longest < least) least = longest, best = b;
      }
      if (best != kNone) add(bins_[best], i);
    }
  }

  void pair_up(std::uint32_t round, std::uint32_t rounds) {
    std::vector<std::int64_t> longest(bins_.size());
    for (std::size_t b = 0; b < bins_.size(); ++b) longest[b] = bins_[b].longest();
    const std::vector<std::uint32_t> sorted = order_descending(longest);
    const std::size_t half = sorted.size() / 2;
    for (std::size_t i = 0; i < half; ++i) {
      Bin& high = bins_[sorted[i]];
      Bin& low = bins_[sorted[sorted.size() - 1 - (i + round) % half]];
      switch (round * kMostSquarings / rounds) {
        case 0: share<1>(high, low, round); break;
        case 1: share<2>(high, low, round); break;
        case 2: share<3>(high, low, round); break;
        default: share<4>(high, low, round); break;
      }
    }
  }

  /// Exchanges up to one sample each way between the bin with the largest load and another, as is
  /// best by the highest power of the loads.
  ///
  /// Returns: whether any exchange is better than none.
  bool relieve_worst() {
    Bin& a = worst();
    const double scale = 1.0 / static_cast<double>(std::max<std::int64_t>(1, a.longest()));
    const auto rated = [&](std::int64_t backbone, std::int64_t encoder) {
      return power<kFinalSquarings>(static_cast<double>(backbone) * scale) +
             power<kFinalSquarings>(static_cast<double>(encoder) * scale);
    };
    const double before = rated(a.backbone, a.encoder);
    double best = -1e-9;
    Bin* other = nullptr;
    std::uint32_t gives = kNone, takes = kNone;
    for (Bin& b : bins_) {
      if (&b == &a) continue;
      const double both = before + rated(b.backbone, b.encoder);
      for (const std::uint32_t out : a.samples) {
        const auto look = [&](std::uint32_t in) {
          const std::int64_t backbone = samples_.cost[out] - (in == kNone ? 0 : samples_.cost[in]);
          const std::int64_t encoder = encoder_[out] - (in == kNone ? 0 : encoder_[in]);
          const std::int64_t tokens =
              samples_.tokens[out] - (in == kNone ? 0 : samples_.tokens[in]);
          if (a.tokens - tokens > cap_ || b.tokens + tokens > cap_) return;
          const double gain = rated(a.backbone - backbone, a.encoder - encoder) +
                              rated(b.backbone + backbone, b.encoder + encoder) - both;
          if (gain < best) best = gain, other = &b, gives = out, takes = in;
        };
        look(kNone);
        for (const std::uint32_t in : b.samples) look(in);
      }
    }
    if (other == nullptr) return false;
    remove(a, gives);
    add(*other, gives);
    if (takes == kNone) return true;
    remove(*other, takes);
    add(a, takes);
    return true;
  }

  /// Shares the worst bin anew with each other, for when no single exchange helps.
  ///
  /// Returns: whether its largest load is less.
  bool share_worst(std::uint32_t turn) {
    Bin& a = worst();
    const std::int64_t before = a.longest();
    for (Bin& b : bins_) {
      if (&b != &a) share<kFinalSquarings>(a, b, turn);
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

 private:
  Bin& worst() {
    return *std::max_element(bins_.begin(), bins_.end(),
                             [](const Bin& x, const Bin& y) { return x.longest() < y.longest(); });
  }

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

  template <std::uint32_t kSquarings>
  static double power(double x) {
    for (std::uint32_t k = 0; k < kSquarings; ++k) x *= x;
    return x;
  }

  template <std::uint32_t kSquarings>
  void share(Bin& a, Bin& b, std::uint32_t round) {
    // The free samples are the last; turns make every one free in time.
    for (Bin* bin : {&a, &b}) {
      const std::size_t count = bin->samples.size();
      const std::size_t turn = count > kFree / 2 ? round % count : 0;
      std::rotate(bin->samples.begin(), bin->samples.begin() + static_cast<std::ptrdiff_t>(turn),
                  bin->samples.end());
    }
    const std::size_t from_a =
        std::min(a.samples.size(), std::max(kFree / 2, kFree - std::min(kFree, b.samples.size())));
    const std::size_t from_b = std::min(b.samples.size(), kFree - from_a);
    std::array<std::uint32_t, kFree> free;
    std::copy_n(a.samples.rbegin(), from_a, free.begin());
    std::copy_n(b.samples.rbegin(), from_b, free.begin() + static_cast<std::ptrdiff_t>(from_a));
    const std::size_t count = from_a + from_b;

    const std::int64_t backbone = a.backbone + b.backbone, encoder = a.encoder + b.encoder;
    const std::int64_t tokens = a.tokens + b.tokens;
    const double scale =
        2.0 / static_cast<double>(std::max<std::int64_t>(1, std::max(backbone, encoder)));
    const auto rated = [&](std::int64_t one, std::int64_t other) {
      return power<kSquarings>(static_cast<double>(one) * scale) +
             power<kSquarings>(static_cast<double>(other) * scale) +
             power<kSquarings>(static_cast<double>(backbone - one) * scale) +
             power<kSquarings>(static_cast<double>(encoder - other) * scale);
    };
    std::int64_t one = a.backbone, other = a.encoder, held = a.tokens;
    std::uint32_t subset = (1U << from_a) - 1, best_subset = subset;
    double best = rated(one, other);
    const std::uint32_t start = subset;
    // Gray code: each step moves one sample.
    for (std::uint32_t step = 1; step < (1U << count); ++step) {
      const auto k = static_cast<std::size_t>(std::countr_zero(step));
      subset ^= 1U << k;
      const std::int64_t sign = (subset >> k & 1U) ? 1 : -1;
      one += sign * samples_.cost[free[k]];
      other += sign * encoder_[free[k]];
      held += sign * samples_.tokens[free[k]];
      if (held > cap_ || tokens - held > cap_) continue;
      const double rating = rated(one, other);
      if (rating < best) best = rating, best_subset = subset;
    }
    if (best_subset == start) return;
    for (auto [bin, taken] : {std::pair{&a, from_a}, std::pair{&b, from_b}}) {
      bin->samples.resize(bin->samples.size() - taken);
      const std::vector<std::uint32_t> kept = std::move(bin->samples);
      *bin = {};
      for (const std::uint32_t i : kept) add(*bin, i);
    }
    for (std::size_t k = 0; k < count; ++k) add((best_subset >> k & 1U) ? a : b, free[k]);
  }

  const Samples& samples_;
  std::span<const std::int64_t> encoder_;
  std::int64_t cap_;
  std::vector<Bin> bins_;
};

}  // namespace

std::vector<std::uint32_t> balance_two(const Samples& samples,
                                       std::span<const std::int64_t> encoder, const Grid& grid,
                                       std::uint32_t rounds, std::uint32_t steps) {
  TwoModules modules(samples, encoder, grid);
  modules.place();
  for (std::uint32_t round = 0; round < rounds; ++round) modules.pair_up(round, rounds);
  for (std::uint32_t step = 0; step < steps; ++step) {
    if (!modules.relieve_worst() && !modules.share_worst(step)) break;
  }
  return modules.bin_of();
}

}  // namespace flowtrain::packing
