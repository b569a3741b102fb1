#include "channel/consumer.hpp"

#include <algorithm>

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

lockfree::Run Consumer::pop(std::size_t most) noexcept {
  const auto cells = static_cast<std::uint32_t>(std::min<std::size_t>(most, lockfree::kMostInRun));
  const std::lock_guard lock(mutex_);
  auto ring = pool_->control().ring(ring_);
  return ring.pop_run(cells, lane_->number(), (**lane_).intent);
}

/// The item in the first cell of a run that was taken; null if its memory is gone.
std::shared_ptr<Item> Consumer::open_first(const lockfree::Run& run) {
  const Control& control = pool_->control();
  const Cell& cell = control.cell(run.first);
  const Descriptor& descriptor = cell.descriptor;
  SlabView view;
  if (descriptor.address == cell.slab && descriptor.bytes <= cell.slab_bytes) {
    try {
      view = pool_->segments().resolve(descriptor.address, descriptor.bytes);
    } catch (...) {
      // This process cannot map it; another may. What came with it goes with it.
      const std::lock_guard lock(mutex_);
      for (std::uint32_t c = run.first; c < run.first + run.count; ++c) {
        control.ring(ring_).push(c, lane_->number(), (**lane_).intent);
      }
      control.ring_header(ring_).filled.notify();
      throw;
    }
  }
  if (view) {
    const std::int64_t now = now_ns();
    note_taken(run.first, now);
    return std::make_shared<Item>(shared_from_this(), run.first, now, std::move(view));
  }
  // The holder of its memory died before this process had mapped it: counted, never hidden.
  note_lost();
  control.free_cell(run.first);
  return nullptr;
}

std::shared_ptr<Item> Consumer::try_get() {
  check_open();
  for (;;) {
    const lockfree::Run run = pop(1);
    if (run.count == 0) return nullptr;
    if (auto item = open_first(run)) return item;
  }
}

std::vector<std::shared_ptr<Item>> Consumer::try_get_many(std::size_t most) {
  check_open();
  std::vector<std::shared_ptr<Item>> items;
  while (items.size() < most) {
    lockfree::Run run = pop(most - items.size());
    if (run.count == 0) break;
    for (; run.count > 0; run = {run.first + 1, run.count - 1}) {
      try {
        if (auto item = open_first(run)) items.push_back(std::move(item));
      } catch (...) {
        // The next call meets it again; what came before it is given out.
        if (items.empty()) throw;
        return items;
      }
    }
  }
  return items;
}

bool Consumer::wait_for_some(const Deadline& deadline, const Interrupted& interrupted) {
  const auto ring = pool_->control().ring(ring_);
  RingHeader& header = pool_->control().ring_header(ring_);
  bool stop = false;
  const bool some = header.filled.wait(deadline, spin_, [&]() noexcept {
    return !ring.looks_empty() || pool_->closed() || (stop = interrupted && interrupted());
  });
  if (stop) return false;
  if (some) return true;
  throw PoolTimeout("pool '" + pool_->name() + "', ring '" + std::string(header.name) +
                    "': nothing arrived within " + std::to_string(deadline.waited_s()) +
                    " s; slabs are held by: " + pool_->holders() +
                    "; is a producer running? otherwise raise timeout_s");
}

std::shared_ptr<Item> Consumer::get(const Deadline& deadline, const Interrupted& interrupted) {
  for (;;) {
    if (auto item = try_get()) return item;
    if (!wait_for_some(deadline, interrupted)) return nullptr;
  }
}

std::vector<std::shared_ptr<Item>> Consumer::get_many(std::size_t most, const Deadline& deadline,
                                                      const Interrupted& interrupted) {
  for (;;) {
    auto items = try_get_many(most);
    if (!items.empty() || most == 0 || !wait_for_some(deadline, interrupted)) return items;
  }
}

}  // namespace flowtrain::channel
