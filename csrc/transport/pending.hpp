#pragma once

#include <cstddef>
#include <cstdint>

#include "base/clock.hpp"

namespace flowtrain::transport {

/// Counts what a link has pending, and since when its peer has taken nothing.
class Pending {
 public:
  std::size_t count() const { return count_; }
  void add() {
    if (count_++ == 0) moved();
  }
  void remove(std::size_t count) {
    count_ -= count;
    moved();
  }
  void clear() { count_ = 0; }
  /// The peer has taken something.
  void moved() { moved_ns_ = now_ns(); }
  std::int64_t stalled_ns() const { return count_ == 0 ? 0 : now_ns() - moved_ns_; }

 private:
  std::size_t count_ = 0;
  std::int64_t moved_ns_ = 0;
};

}  // namespace flowtrain::transport
