#include "channel/consumer.hpp"

#include "base/error.hpp"

namespace flowtrain::channel {

Item::Item(std::shared_ptr<Consumer> consumer, std::uint32_t cell, SlabView view)
    : consumer_(std::move(consumer)), cell_(cell), view_(std::move(view)) {
  const Control& control = consumer_->pool().control();
  const Cell& from = control.cell(cell);
  descriptor_ = from.descriptor;
  attempt_ = from.attempt;
  producer_ = control.lane(descriptor_.producer).label;
}

Item::~Item() {
  if (open_) give_back();
}

void Item::release() {
  if (!open_) throw PoolClosed("item: it was released already; get another");
  const int views = views_.load(std::memory_order_acquire);  // sync: item.views
  if (views > 0) {
    throw ViewsAlive(
        "item: " + std::to_string(views) + (views == 1 ? " view of it is" : " views of it are") +
        " alive (tensor, array or memoryview over its slab); delete or copy before " + "release");
  }
  give_back();
}

void Item::give_back() noexcept {
  open_ = false;
  Pool& pool = consumer_->pool();
  // In a forked child the cell is still the parent's.
  if (pool.forked()) return;
  consumer_->count((**consumer_->lane_).items_released);
  pool.control().free_cell(cell_);
}

Consumer::Consumer(std::shared_ptr<Pool> pool, const std::string& ring) : pool_(std::move(pool)) {
  pool_->check_open();
  ring_ = pool_->ring_number(ring);
  lane_ = pool_->join(LaneRole::kConsumer);
}

void Consumer::check_open() const {
  pool_->check_open();
  if (closed_.load(std::memory_order_relaxed)) {
    throw PoolClosed("consumer: it is closed; make another");
  }
}

void Consumer::count(std::atomic<std::uint64_t>& counter) const noexcept {
  const std::lock_guard lock(mutex_);
  counter.store(counter.load(std::memory_order_relaxed) + 1, std::memory_order_relaxed);
}

std::shared_ptr<Item> Consumer::try_get() {
  check_open();
  const Control& control = pool_->control();
  Lane& mine = **lane_;
  auto ring = control.ring(ring_);
  for (;;) {
    std::uint32_t c = 0;
    {
      const std::lock_guard lock(mutex_);
      c = ring.pop(lane_->number(), mine.intent);
    }
    if (c == lockfree::IndexRing<>::kNone) return nullptr;
    const Cell& cell = control.cell(c);
    const Descriptor& descriptor = cell.descriptor;
    SlabView view;
    if (descriptor.address == cell.slab && descriptor.bytes <= cell.slab_bytes) {
      try {
        view = pool_->segments().resolve(descriptor.address, descriptor.bytes);
      } catch (...) {
        // This process cannot map it; another may.
        const std::lock_guard lock(mutex_);
        ring.push(c, lane_->number(), mine.intent);
        throw;
      }
    }
    if (view) {
      count(mine.items_taken);
      return std::make_shared<Item>(shared_from_this(), c, std::move(view));
    }
    // The holder of its memory died before this process had mapped it: counted, never hidden.
    count(mine.items_lost);
    control.free_cell(c);
  }
}

std::shared_ptr<Item> Consumer::get(const Deadline& deadline, const Interrupted& interrupted) {
  const auto ring = pool_->control().ring(ring_);
  RingHeader& header = pool_->control().ring_header(ring_);
  for (;;) {
    if (auto item = try_get()) return item;
    bool stop = false;
    const bool some = header.filled.wait(deadline, spin_, [&]() noexcept {
      return !ring.looks_empty() || pool_->closed() || (stop = interrupted && interrupted());
    });
    if (stop) return nullptr;
    if (some) continue;
    throw PoolTimeout("pool '" + pool_->name() + "', ring '" + std::string(header.name) +
                      "': nothing arrived within " + std::to_string(deadline.waited_s()) +
                      " s; slabs are held by: " + pool_->holders() +
                      "; is a producer running? otherwise raise timeout_s");
  }
}

}  // namespace flowtrain::channel
