#include "packing/two_modules.hpp"

#include <algorithm>
#include <bit>
#include <functional>
#include <utility>

#include "packing/bound.hpp"
#include "packing/order.hpp"
#include "packing/repartition.hpp"
#include "packing/search.hpp"

namespace flowtrain::packing {
namespace {

constexpr std::uint32_t kMovable = 12;
constexpr std::size_t kWorkPerSum = 10;  // In exchanges, by their time.

/// Load of a bin, or what an exchange takes from one bin to another.
struct Load {
  std::int64_t backbone = 0;
  std::int64_t encoder = 0;
  std::int64_t tokens = 0;

  std::int64_t longest() const { return std::max(backbone, encoder); }
  Load operator+(const Load& other) const {
    return {backbone + other.backbone, encoder + other.encoder, tokens + other.tokens};
  }
  Load operator-(const Load& other) const {
    return {backbone - other.backbone, encoder - other.encoder, tokens - other.tokens};
  }
};

/// Finds the bin whose larger load is lowest with one more sample.
///
/// Memory:  a binary tree of the bins, 40 bytes a node.
/// Threads: none.
/// Errors:  none.
class LowestBin {
 public:
  explicit LowestBin(std::span<const Load> loads)
      : leaves_(std::bit_ceil(std::max<std::size_t>(1, loads.size()))), least_(2 * leaves_) {
    for (std::size_t b = 0; b < loads.size(); ++b) least_[leaves_ + b] = of(loads[b]);
    for (std::size_t at = leaves_ - 1; at > 0; --at) pull(at);
  }

  void set(std::uint32_t bin, const Load& load) {
    std::size_t at = leaves_ + bin;
    for (least_[at] = of(load); at > 1;) pull(at /= 2);
  }

  /// Of equal bins the first; kNone where none has room.
  std::uint32_t find(const Load& sample, std::int64_t cap) const {
    Best best;
    search(1, 0, leaves_, sample, cap - sample.tokens, best);
    return best.bin;
  }

 private:
  /// The least of each of the loads below a node, of the sum of both, and of the larger one.
  struct Least {
    std::int64_t backbone = INT64_MAX, encoder = INT64_MAX, tokens = INT64_MAX;
    std::int64_t both = INT64_MAX, longest = INT64_MAX;
  };

  static Least of(const Load& load) {
    return {load.backbone, load.encoder, load.tokens, load.backbone + load.encoder, load.longest()};
  }

  struct Best {
    std::int64_t longest = INT64_MAX;
    std::uint32_t bin = kNone;
  };

  void pull(std::size_t at) {
    const Least &a = least_[2 * at], &b = least_[2 * at + 1];
    least_[at] = {std::min(a.backbone, b.backbone), std::min(a.encoder, b.encoder),
                  std::min(a.tokens, b.tokens), std::min(a.both, b.both),
                  std::min(a.longest, b.longest)};
  }

  /// No bin below `at` ends below this; INT64_MAX where none has room.
  std::int64_t bound(std::size_t at, const Load& sample, std::int64_t room) const {
    const Least& least = least_[at];
    if (least.tokens > room) return INT64_MAX;
    // The larger load is at least half of both, and the larger one so far with the smaller addend.
    const std::int64_t half = (least.both + sample.backbone + sample.encoder + 1) / 2;
    const std::int64_t grown = least.longest + std::min(sample.backbone, sample.encoder);
    return std::max(
        {least.backbone + sample.backbone, least.encoder + sample.encoder, half, grown});
  }

  void search(std::size_t at, std::size_t first, std::size_t count, const Load& sample,
              std::int64_t room, Best& best) const {
    const std::int64_t longest = bound(at, sample, room);
    if (longest > best.longest || (longest == best.longest && first >= best.bin)) return;
    if (longest == INT64_MAX) return;
    if (count == 1) {
      best = {longest, static_cast<std::uint32_t>(first)};
      return;
    }
    const std::size_t half = count / 2;
    const bool left = bound(2 * at, sample, room) <= bound(2 * at + 1, sample, room);
    for (const bool right : {!left, left})
      search(2 * at + right, first + right * half, half, sample, room, best);
  }

  std::size_t leaves_;
  Vector<Least> least_;
};

class TwoModules {
 public:
  TwoModules(const Samples& samples, const Grid& grid)
      : samples_(samples),
        cap_(grid.max_tokens),
        bins_(samples, grid.bins()),
        loads_(grid.bins()),
        held_(samples.size()),
        repartitioner_(bins_, cap_) {}

  /// Returns: whether all samples fit.
  bool place() {
    bool fit = true;
    std::vector<std::int64_t> longer(samples_.size());
    for (std::uint32_t i = 0; i < longer.size(); ++i) longer[i] = of(i).longest();
    LowestBin lowest(loads_);
    for (const std::uint32_t i : order_descending(longer)) {
      const std::uint32_t best = lowest.find(of(i), cap_);
      fit = fit && best != kNone;
      if (best == kNone) continue;
      add(i, best);
      lowest.set(best, loads_[best]);
    }
    return fit;
  }

  void put(std::span<const std::uint32_t> bin_of) {
    for (std::uint32_t b = 0; b < loads_.size(); ++b) bins_.clear(b);
    std::ranges::fill(loads_, Load{});
    for (std::uint32_t i = 0; i < bin_of.size(); ++i) add(i, bin_of[i]);
  }

  void pair_up(std::uint32_t round) {
    std::vector<std::int64_t> longest;
    for (const Load& load : loads_) longest.push_back(load.longest());
    const Vector<std::uint32_t> sorted = order_descending(longest);
    const std::size_t half = sorted.size() / 2;
    for (std::size_t i = 0; i < half; ++i) {
      share(sorted[i], sorted[sorted.size() - 1 - (i + round) % half], round);
    }
  }

  /// Exchanges up to one sample each way between the bin with the largest load and another, such
  /// that the larger load of the two is lowest or, where that stays, the sum of their squares.
  ///
  /// Returns: whether any exchange is better than none.
  bool relieve_worst() {
    std::int64_t lowest = longest();
    double best = 0;
    return exchange(false, [&](const Load& a, const Load& b, const Load& moved) {
      const std::int64_t longest = std::max((a - moved).longest(), (b + moved).longest());
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
    std::int64_t lowest = INT64_MAX;
    return exchange(true, [&](const Load& a, const Load& b, const Load& moved) {
      const std::int64_t longest = (b + moved).longest();
      if (longest >= lowest || (a - moved).longest() >= a.longest()) return false;
      lowest = longest;
      return true;
    });
  }

  void let_go() { std::fill(held_.begin(), held_.end(), false); }

  /// Divides the worst bin and each other bin anew, if no single exchange helps.
  ///
  /// Returns: whether its largest load is less.
  bool share_worst(std::uint32_t round) {
    const std::uint32_t a = worst();
    const std::int64_t before = longest();
    for (std::uint32_t b = 0; b < loads_.size(); ++b) {
      if (b != a) share(a, b, round);
    }
    return longest() < before;
  }

  std::vector<std::uint32_t> bin_of() const {
    return {bins_.bin_of().begin(), bins_.bin_of().end()};
  }
  std::int64_t longest() const { return loads_[worst()].longest(); }
  std::uint64_t work() const { return work_; }

 private:
  Load of(std::uint32_t i) const {
    return {samples_.cost[i] - samples_.encoder[i], samples_.encoder[i], samples_.tokens[i]};
  }

  /// Applies the last exchange of the worst bin with another that `better(worst, other, moved)`
  /// accepts, and holds its samples if so said.
  template <class Better>
  bool exchange(bool hold, Better better) {
    const std::uint32_t a = worst();
    std::uint32_t other = kNone, gives = kNone, takes = kNone;
    const auto list = [&](std::uint32_t bin, std::vector<std::pair<std::uint32_t, Load>>& out) {
      out.clear();
      bins_.each(bin, [&](std::uint32_t i) {
        if (!held_[i]) out.emplace_back(i, of(i));
      });
    };
    list(a, mine_);
    work_ += mine_.size() * (samples_.size() + loads_.size());
    for (std::uint32_t b = 0; b < loads_.size(); ++b) {
      if (b == a) continue;
      list(b, theirs_);
      theirs_.emplace_back(kNone, Load{});
      for (const auto& [out, given] : mine_) {
        for (const auto& [in, taken] : theirs_) {
          const Load moved = given - taken;
          if (loads_[a].tokens - moved.tokens > cap_ || loads_[b].tokens + moved.tokens > cap_)
            continue;
          if (better(loads_[a], loads_[b], moved)) other = b, gives = out, takes = in;
        }
      }
    }
    if (other == kNone) return false;
    move(gives, other, hold);
    if (takes != kNone) move(takes, a, hold);
    return true;
  }

  std::uint32_t worst() const {
    return static_cast<std::uint32_t>(std::ranges::max_element(loads_, {}, &Load::longest) -
                                      loads_.begin());
  }

  void add(std::uint32_t i, std::uint32_t bin) {
    bins_.add(i, bin);
    loads_[bin] = loads_[bin] + of(i);
  }

  void move(std::uint32_t i, std::uint32_t bin, bool hold) {
    Load& from = loads_[bins_.bin_of()[i]];
    from = from - of(i);
    bins_.remove(i);
    add(i, bin);
    held_[i] = hold;
  }

  void share(std::uint32_t a, std::uint32_t b, std::uint32_t round) {
    const std::int64_t half = (bins_.load(a) + bins_.load(b)) / 2;
    const auto [better, sums] = repartitioner_.divide(
        a, b, {.target = half, .movable = kMovable, .offset = round, .tolerance = 0});
    work_ += kWorkPerSum * sums;
    if (!better) return;
    for (const std::uint32_t bin : {a, b}) {
      loads_[bin] = {};
      bins_.each(bin, [&](std::uint32_t i) { loads_[bin] = loads_[bin] + of(i); });
    }
  }

  /// Half of what the squares of two loads grow by if `moved` goes from one to another that is
  /// larger by `apart`.
  static double growth(std::int64_t moved, std::int64_t apart) {
    return static_cast<double>(moved) * static_cast<double>(apart + moved);
  }

  const Samples& samples_;  ///< Costs of both modules together, and the encoder's part.
  std::int64_t cap_;
  Bins bins_;
  std::vector<Load> loads_;
  std::vector<std::uint8_t> held_;  ///< Samples that exchanges leave where they are.
  Repartitioner repartitioner_;
  std::uint64_t work_ = 0;
  std::vector<std::pair<std::uint32_t, Load>> mine_, theirs_;
};

}  // namespace

std::vector<std::uint32_t> balance_two(const Samples& samples,
                                       std::span<const std::int64_t> encoder, const Grid& grid,
                                       std::uint32_t rounds, std::uint64_t work) {
  std::vector<std::int64_t> both(samples.size());
  std::ranges::transform(samples.cost, encoder, both.begin(), std::plus<>());
  const Samples together{samples.tokens, both, encoder};
  TwoModules modules(together, grid);
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
