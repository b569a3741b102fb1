#include "packing/regroup.hpp"

#include <algorithm>
#include <array>
#include <vector>

#include "packing/order.hpp"
#include "packing/share.hpp"

namespace flowtrain::packing {
namespace {

constexpr std::size_t kGroup = 3;
constexpr std::uint32_t kDeals = 6;         // Of pairs of a group, before it is given up.
constexpr std::uint32_t kPatience = 6;      // Turns in a row that help no bin.
constexpr std::uint64_t kWorkOfSample = 4;  // To sort and place it, in sums.

class Regrouper {
 public:
  Regrouper(Bins& bins, std::int64_t limit, std::int64_t token_cap)
      : bins_(bins), limit_(limit), token_cap_(token_cap), sharer_(bins, token_cap) {}

  using Group = std::array<std::uint32_t, kGroup>;

  /// Returns: whether the heaviest of the group is lighter now; else nothing has changed.
  bool pack(const Group& group, std::uint32_t turn) {
    samples_.clear();
    std::int64_t before = 0;
    for (const std::uint32_t bin : group) {
      before = std::max(before, bins_.load(bin));
      bins_.each(bin, [&](std::uint32_t i) { samples_.push_back({i, bin}); });
    }
    for (const std::uint32_t bin : group) bins_.clear(bin);
    // What came last to a bin came first here, and so comes back in the same order.
    former_ = samples_;
    work_ += kWorkOfSample * samples_.size();
    if (place(group) && even_out(group, turn) < before) return true;
    for (const std::uint32_t bin : group) bins_.clear(bin);
    for (auto at = former_.rbegin(); at != former_.rend(); ++at) bins_.add(at->sample, at->bin);
    return false;
  }

  std::uint64_t work() const { return work_; }

 private:
  struct Place {
    std::uint32_t sample;
    std::uint32_t bin;
  };

  /// Costliest first, each into the lightest bin with room.
  bool place(const Group& group) {
    const Samples& of = bins_.samples();
    std::stable_sort(samples_.begin(), samples_.end(), [&](const Place& a, const Place& b) {
      const std::int64_t x = of.cost[a.sample], y = of.cost[b.sample];
      return x != y ? x > y : a.sample < b.sample;
    });
    for (const Place& place : samples_) {
      std::uint32_t lightest = kNone;
      for (const std::uint32_t bin : group) {
        if (bins_.tokens(bin) + of.tokens[place.sample] > token_cap_) continue;
        if (lightest == kNone || bins_.load(bin) < bins_.load(lightest)) lightest = bin;
      }
      if (lightest == kNone) return false;
      bins_.add(place.sample, lightest);
    }
    return true;
  }

  /// Shares the heaviest with the lightest and with the one between by turns.
  ///
  /// Returns: the load of the heaviest.
  std::int64_t even_out(Group group, std::uint32_t turn) {
    const auto lighter = [&](std::uint32_t a, std::uint32_t b) {
      return bins_.load(a) < bins_.load(b);
    };
    for (std::uint32_t deal = 0;; ++deal) {
      std::stable_sort(group.begin(), group.end(), lighter);
      const std::uint32_t heaviest = group.back(), other = group[deal % (kGroup - 1)];
      if (deal == kDeals || bins_.load(heaviest) <= limit_) return bins_.load(heaviest);
      const std::int64_t apart = bins_.load(heaviest) - bins_.load(other);
      work_ +=
          sharer_.share(heaviest, other, {bins_.load(heaviest) - apart / 2, 14, turn + deal, 0})
              .sums;
    }
  }

  Bins& bins_;
  std::int64_t limit_;
  std::int64_t token_cap_;
  Sharer sharer_;
  std::vector<Place> samples_;  ///< Of a group, and where they were.
  std::vector<Place> former_;
  std::uint64_t work_ = 0;
};

}  // namespace

void regroup(Bins& bins, std::int64_t limit, std::int64_t token_cap, std::uint64_t work) {
  const std::size_t third = bins.count() / kGroup;
  if (third == 0) return;
  Regrouper regrouper(bins, limit, token_cap);
  std::uint32_t failures = 0;
  for (std::uint32_t turn = 0; failures < kPatience && regrouper.work() < work; ++turn) {
    const std::vector<std::uint32_t> sorted = order_descending(bins.loads());
    if (bins.load(sorted.front()) <= limit) return;
    work -= std::min<std::uint64_t>(work, sorted.size());
    ++failures;
    for (std::size_t i = 0; i < third && regrouper.work() < work; ++i) {
      if (bins.load(sorted[i]) <= limit) break;
      // Others in every turn, one of the lightest and one of the middle.
      const std::size_t other = (i + turn) % third;
      const Regrouper::Group group{sorted[i], sorted[third + other],
                                   sorted[sorted.size() - 1 - other]};
      if (regrouper.pack(group, turn)) failures = 0;
    }
  }
}

}  // namespace flowtrain::packing
