#include "packing/search.hpp"

#include <algorithm>
#include <set>
#include <utility>

#include "packing/order.hpp"

namespace flowtrain::packing {
namespace {

/// Samples of equal tokens: places in the order of all.
struct Kind {
  std::int64_t tokens;
  std::size_t begin, left;
};

/// A bin that is complete, or the one that is being filled.
struct Open {
  std::size_t begin;  ///< Of its samples on the path.
  std::int64_t room;
};

/// The search and its state.
class Searcher {
 public:
  Searcher(std::span<const std::int64_t> tokens, std::uint32_t bins, std::int64_t max_tokens)
      : size_(tokens.size()),
        bins_(bins),
        max_tokens_(max_tokens),
        spare_(Wide{max_tokens} * bins - sum(tokens)),
        order_(order_descending(tokens)) {
    for (std::size_t k = 0; k < order_.size(); ++k) {
      const std::int64_t length = tokens[order_[k]];
      if (kinds_.empty() || kinds_.back().tokens != length) kinds_.push_back({length, k, 0});
      ++kinds_.back().left;
    }
    for (std::size_t k = 0; k < kinds_.size(); ++k) remaining_.insert(remaining_.end(), k);
  }

  Wide spare() const { return spare_; }

  /// Returns: whether all samples have a bin, or all ways were tried before the tries ended. With
  /// `evenly` each complete bin may only leave its share of the room to spare.
  bool run(bool evenly, std::uint64_t max_tries, Search& out) {
    opened_.push_back({0, max_tokens_});
    while (path_.size() < size_) {
      Open& bin = opened_.back();
      if (const auto k = longest_within(bin.room, from_); k != kinds_.size()) {
        if (out.tries == max_tries) return false;
        ++out.tries;
        path_.push_back(k);
        bin.room -= kinds_[k].tokens;
        if (--kinds_[k].left == 0) remaining_.erase(k);
        from_ = k;
        continue;
      }
      // A bin with room for a remaining sample is not complete: another bin would have to take it.
      const bool complete = longest_within(bin.room, 0) == kinds_.size();
      const Wide spare = evenly ? spare_ * static_cast<Wide>(opened_.size()) / bins_ : spare_;
      if (complete && wasted_ + bin.room <= spare && opened_.size() < bins_) {
        wasted_ += bin.room;
        opened_.push_back({path_.size(), max_tokens_});
        from_ = 0;
        continue;
      }
      // The first sample of a bin is the longest left, and has no alternative.
      do {
        take_back();
      } while (!path_.empty() && path_.size() == opened_.back().begin);
      if (path_.empty()) {
        opened_.clear();
        return true;
      }
    }
    return true;
  }

  std::vector<std::uint32_t> bin_of() {
    if (path_.size() < size_) return {};
    std::vector<std::uint32_t> out(size_);
    for (std::size_t bin = 0, at = 0; bin < opened_.size(); ++bin) {
      const std::size_t end = bin + 1 < opened_.size() ? opened_[bin + 1].begin : size_;
      // The places of a kind are used from the first on.
      for (; at < end; ++at) {
        out[order_[kinds_[path_[at]].begin++]] = static_cast<std::uint32_t>(bin);
      }
    }
    return out;
  }

  void start_anew() {
    while (!path_.empty()) take_back();
    opened_.clear();
    from_ = 0;
  }

 private:
  void take_back() {
    if (path_.size() == opened_.back().begin) {
      opened_.pop_back();
      wasted_ -= opened_.back().room;
    }
    const std::size_t k = path_.back();
    path_.pop_back();
    if (kinds_[k].left++ == 0) remaining_.insert(k);
    opened_.back().room += kinds_[k].tokens;
    from_ = k + 1;
  }

  /// The first kind from `from` on that fits into so much room, or the number of kinds.
  std::size_t longest_within(std::int64_t room, std::size_t from) const {
    const auto at = std::partition_point(kinds_.begin(), kinds_.end(),
                                         [&](const Kind& kind) { return kind.tokens > room; });
    const auto found =
        remaining_.lower_bound(std::max(from, static_cast<std::size_t>(at - kinds_.begin())));
    return found == remaining_.end() ? kinds_.size() : *found;
  }

  std::size_t size_;
  std::uint32_t bins_;
  std::int64_t max_tokens_;
  Wide spare_;  ///< Room that all bins may leave.
  Vector<std::uint32_t> order_;
  std::vector<Kind> kinds_;          ///< Longest first.
  std::set<std::size_t> remaining_;  ///< Kinds of which samples are left.
  std::vector<std::size_t> path_;    ///< Kinds, in the order in which they were put into bins.
  std::vector<Open> opened_;
  Wide wasted_ = 0;       ///< Room of the complete bins.
  std::size_t from_ = 0;  ///< The first kind that the open bin may still take.
};

}  // namespace

std::vector<std::uint32_t> best_fit(std::span<const std::int64_t> tokens, Order order,
                                    std::int64_t max_tokens) {
  std::vector<std::uint32_t> bin_of(tokens.size(), kNone);
  std::set<std::pair<std::int64_t, std::uint32_t>> open;  // Room, and the bin that has it.
  for (const std::uint32_t i : order) {
    const auto fullest = open.lower_bound({tokens[i], 0});
    auto [room, bin] = fullest == open.end()
                           ? std::pair{max_tokens, static_cast<std::uint32_t>(open.size())}
                           : *fullest;
    if (fullest != open.end()) open.erase(fullest);
    open.emplace(room - tokens[i], bin);
    bin_of[i] = bin;
  }
  return bin_of;
}

Search search_bins(std::span<const std::int64_t> tokens, std::uint32_t bins,
                   std::int64_t max_tokens) {
  const std::uint64_t tries = (std::uint64_t{1} << 15) + 8 * tokens.size();
  Searcher searcher(tokens, bins, max_tokens);
  Search out;
  if (searcher.spare() < 0) {
    out.impossible = true;
    return out;
  }
  if (searcher.spare() > 0) {
    searcher.run(true, tries, out);
    out.bin_of = searcher.bin_of();
    if (!out.bin_of.empty()) return out;
    searcher.start_anew();
  }
  const bool all = searcher.run(false, out.tries + tries, out);
  out.bin_of = searcher.bin_of();
  out.impossible = all && out.bin_of.empty();
  return out;
}

bool pack_by_tokens(Bins& bins, std::int64_t max_tokens, bool thorough) {
  const auto tokens = bins.samples().tokens;
  std::vector<std::uint32_t> bin_of = best_fit(tokens, order_descending(tokens), max_tokens);
  if (std::ranges::any_of(bin_of, [&](std::uint32_t bin) { return bin >= bins.count(); })) {
    if (!thorough) return false;
    bin_of = search_bins(tokens, bins.count(), max_tokens).bin_of;
    if (bin_of.empty()) return false;
  }
  for (std::uint32_t b = 0; b < bins.count(); ++b) bins.clear(b);
  for (std::uint32_t i = 0; i < bin_of.size(); ++i) bins.add(i, bin_of[i]);
  return true;
}

}  // namespace flowtrain::packing
