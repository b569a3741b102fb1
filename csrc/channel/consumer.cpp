#include "channel/consumer.hpp"

#include "base/clock.hpp"
#include "base/error.hpp"

namespace flowtrain::channel {
namespace {

/// For a counter that one thread at a time writes.
void count(std::atomic<std::uint64_t>& counter) noexcept {
  counter.store(counter.load(std::memory_order_relaxed) + 1, std::memory_order_relaxed);
}

}  // namespace

Item::Item(std::shared_ptr<Consumer> consumer, std::uint32_t cell, std::int64_t taken_ns,
           SlabView view)
    : consumer_(std::move(consumer)), cell_(cell), taken_ns_(taken_ns), view_(std::move(view)) {
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
  consumer_->note_released(cell_, descriptor_, taken_ns_);
  pool.control().free_cell(cell_);
}

Consumer::Consumer(std::shared_ptr<Pool> pool, const std::string& ring) : pool_(std::move(pool)) {
  pool_->check_open();
  ring_ = pool_->ring_number(ring);
  lane_ = pool_->join(LaneRole::kConsumer, static_cast<std::uint16_t>(ring_));
}

void Consumer::check_open() const {
  pool_->check_open();
  if (closed_.load(std::memory_order_relaxed)) {
    throw PoolClosed("consumer: it is closed; make another");
  }
}

void Consumer::note_taken(std::uint32_t c, std::int64_t now) const noexcept {
  const std::lock_guard lock(mutex_);
  const Control& control = pool_->control();
  const Cell& cell = control.cell(c);
  LaneRecord& record = control.record(lane_->number());
  const Descriptor& item = cell.descriptor;
  count((**lane_).items_taken);
  record.queue_wait.add(now - cell.published_ns);
  record.flight.note({now, item.key_low, item.bytes, c, Act::kTaken, item.producer});
}

void Consumer::note_released(std::uint32_t c, const Descriptor& item,
                             std::int64_t taken_ns) const noexcept {
  const std::int64_t now = now_ns();
  const std::lock_guard lock(mutex_);
  LaneRecord& record = pool_->control().record(lane_->number());
  count((**lane_).items_released);
  record.use.add(now - taken_ns);
  record.flight.note({now, item.key_low, item.bytes, c, Act::kReleased, item.producer});
}

void Consumer::note_lost() const noexcept {
  const std::lock_guard lock(mutex_);
  count((**lane_).items_lost);
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
      const std::int64_t now = now_ns();
      note_taken(c, now);
      return std::make_shared<Item>(shared_from_this(), c, now, std::move(view));
    }
    // The holder of its memory died before this process had mapped it: counted, never hidden.
    note_lost();
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
