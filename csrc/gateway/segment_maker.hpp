#pragma once

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <exception>
#include <memory>
#include <mutex>
#include <thread>

#include "channel/pool.hpp"
#include "memory/carve.hpp"
#include "os/fd.hpp"

namespace flowtrain::gateway {

/// A segment of the pool that is being made, or was. Its destructor drops the segment, or ends the
/// making of it.
class NewSegment {
 public:
  explicit NewSegment(channel::Pool& pool) : pool_(pool) {}
  ~NewSegment();
  NewSegment(const NewSegment&) = delete;
  NewSegment& operator=(const NewSegment&) = delete;

  /// 0 while it is being made. Throws what ended the making.
  std::uint32_t number() const;

 private:
  friend class SegmentMaker;

  channel::Pool& pool_;
  std::uint32_t number_ = 0;
  std::exception_ptr failure_;
  std::atomic<bool> is_done_{false};
};

/// Makes segments on a thread of its own, since many GiB of new memory take seconds.
///
/// Memory:   of the pool. One after the other, since the memory that is left is known only when the
///           last one has all of its own.
/// Threads:  any, and one of its own.
/// Progress: make never waits. The end of a NewSegment, or of this object, ends its making after
///           some MiB.
/// Ordering: new_segment.done publishes the number.
/// Errors:   those of Segments are told by NewSegment::number; SystemCallError if the system has no
///           thread left.
class SegmentMaker {
 public:
  /// @param wakes  An eventfd that is written when a segment is made, or has failed.
  SegmentMaker(channel::Pool& pool, const os::Fd& wakes);
  SegmentMaker(const SegmentMaker&) = delete;
  SegmentMaker& operator=(const SegmentMaker&) = delete;

  std::shared_ptr<NewSegment> make(memory::Carving carving);

 private:
  struct Order {
    memory::Carving carving;
    std::weak_ptr<NewSegment> made;  // Expired once nobody wants it.
  };
  void work(const std::stop_token& stop);
  void fill(const Order& order, const std::stop_token& stop);

  channel::Pool& pool_;
  const os::Fd& wakes_;
  std::mutex mutex_;
  std::condition_variable_any ordered_;
  std::deque<Order> orders_;  // Under mutex_.
  std::jthread thread_;       // Last: uses the others.
};

}  // namespace flowtrain::gateway
