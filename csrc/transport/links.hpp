#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

namespace flowtrain::transport {

/// The outgoing links of one transport.
/// @tparam Outgoing  A FramedLink that `is_open()` until its connection is closed.
template <class Outgoing>
class Links {
 public:
  void add(std::shared_ptr<Outgoing> link) { links_.push_back(std::move(link)); }
  auto begin() const { return links_.begin(); }
  auto end() const { return links_.end(); }

  /// Ends the links that have no user or no connection in time, and drops those that are closed.
  ///
  /// Returns: whether to call it again within a second.
  bool sweep(std::int64_t connect_limit_ns) {
    bool again = false;
    for (std::size_t i = 0; i < links_.size(); ++i) {  // The receiver may add links.
      if (links_[i].use_count() == 1) links_[i]->abort();
      links_[i]->expire(connect_limit_ns);
      again = again || links_[i]->is_connecting();
    }
    std::erase_if(links_, [](const auto& link) { return !link->is_open(); });
    return again;
  }

  /// A line for each link without an error, after a newline.
  std::string explain() const {
    std::string found;
    for (const auto& link : links_) {
      if (!link->error().empty()) continue;
      found += "\n  to " + link->peer() + ": " + std::to_string(link->pending()) + " pending";
      const std::int64_t stalled_ms = link->stalled_ns() / 1'000'000;
      if (stalled_ms < 1000) continue;
      found += ", and the peer has taken nothing for " + std::to_string(stalled_ms / 1000) + " s";
    }
    return found;
  }

 private:
  std::vector<std::shared_ptr<Outgoing>> links_;
};

}  // namespace flowtrain::transport
