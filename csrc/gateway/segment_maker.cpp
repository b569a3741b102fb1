#include "gateway/segment_maker.hpp"

#include <utility>

#include "gateway/watch.hpp"
#include "os/thread.hpp"

namespace flowtrain::gateway {

NewSegment::~NewSegment() {
  if (number_ == 0) return;
  try {
    pool_.drop_segment(number_);
  } catch (const std::exception&) {
    // The pool is closed, which drains all segments of this handle.
  }
}

std::uint32_t NewSegment::number() const {
  if (!is_done_.load(std::memory_order_acquire)) return 0;  // sync: new_segment.done
  if (failure_) std::rethrow_exception(failure_);
  return number_;
}

SegmentMaker::SegmentMaker(channel::Pool& pool, const os::Fd& wakes)
    : pool_(pool),
      wakes_(wakes),
      thread_(os::start_thread("gateway of pool '" + pool.name() + "'", "makes segments",
                               [this](const std::stop_token& stop) { work(stop); })) {}

std::shared_ptr<NewSegment> SegmentMaker::make(memory::Carving carving) {
  auto made = std::make_shared<NewSegment>(pool_);
  const std::lock_guard lock(mutex_);
  orders_.push_back({std::move(carving), made});
  ordered_.notify_one();
  return made;
}

void SegmentMaker::work(const std::stop_token& stop) {
  for (;;) {
    Order order;
    {
      std::unique_lock lock(mutex_);
      if (!ordered_.wait(lock, stop, [this] { return !orders_.empty(); })) return;
      order = std::move(orders_.front());
      orders_.pop_front();
    }
    fill(order, stop);
  }
}

void SegmentMaker::fill(const Order& order, const std::stop_token& stop) {
  const auto ended = [&] { return order.made.expired() || stop.stop_requested(); };
  std::uint32_t number = 0;
  std::exception_ptr failure;
  try {
    channel::Segments& segments = pool_.segments();
    if (const auto claim = segments.claim(order.carving, pool_.lane(), ended)) {
      number = segments.make(*claim, order.carving, true, ended);
    }
  } catch (...) {
    failure = std::current_exception();
  }
  if (number == 0 && !failure) return;  // Nobody wants it any more.
  auto made = order.made.lock();
  if (!made) made = std::make_shared<NewSegment>(pool_);  // Ends here, and so drops it.
  made->number_ = number;
  made->failure_ = failure;
  made->is_done_.store(true, std::memory_order_release);  // sync: new_segment.done
  wake(wakes_);
}

}  // namespace flowtrain::gateway
