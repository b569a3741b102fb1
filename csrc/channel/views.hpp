#pragma once

#include <atomic>
#include <functional>
#include <string>
#include <string_view>
#include <utility>

#include "base/error.hpp"

namespace flowtrain::channel {

/// Count of the live views (tensors, arrays, memoryviews) over one slab. A slab with views is
/// neither published nor freed: a view would then show, or change, another item's bytes.
///
/// Memory:   a member of the lease or item, which each view keeps alive.
/// Threads:  any.
/// Progress: wait-free.
/// Ordering: slab.views orders the accesses of a view before the end of the slab.
/// Errors:   check_none throws ViewsAlive.
class Views {
 public:
  void add() noexcept { count_.fetch_add(1, std::memory_order_relaxed); }
  void drop() noexcept {
    const int before = count_.fetch_sub(1, std::memory_order_acq_rel);  // sync: slab.views
    if (before == kEnding + 1) at_end_();
  }

  /// Calls `then` once there is no view: now, or in the thread that drops the last one. None may be
  /// added any more.
  void when_none(std::function<void()> then) {
    at_end_ = std::move(then);
    const int before = count_.fetch_add(kEnding, std::memory_order_acq_rel);  // sync: slab.views
    if (before == 0) at_end_();
  }

  /// @param what    Names the lease or item.
  /// @param before  The call that is refused.
  void check_none(std::string_view what, const char* before) const {
    if (const int views = count(); views > 0) refuse(views, what, before);
  }

 private:
  static constexpr int kEnding = 1 << 30;

  int count() const noexcept {
    return count_.load(std::memory_order_acquire) & ~kEnding;  // sync: slab.views
  }

  [[noreturn]] static void refuse(int views, std::string_view what, const char* before) {
    throw ViewsAlive(std::string(what) + ": " + std::to_string(views) +
                     (views == 1 ? " view of it is" : " views of it are") +
                     " alive (tensor, array or memoryview over its slab); delete " +
                     (views == 1 ? "it" : "them") + " before " + before);
  }

  std::atomic<int> count_{0};
  std::function<void()> at_end_;
};

}  // namespace flowtrain::channel
