#include "channel/consumer.hpp"

#include "base/error.hpp"

namespace flowtrain::channel {
namespace {

constexpr std::int64_t kSpinNs = 50'000;

void bump(std::atomic<std::uint64_t>& counter) {
  counter.store(counter.load(std::memory_order_relaxed) + 1, std::memory_order_relaxed);
}

}  // namespace

Item::~Item() {
  if (open_) give_back();
}

void Item::release() {
  if (!open_) throw PoolClosed("item: it was released already; get another");
  const int views = views_.load(std::memory_order_acquire);
  if (views > 0) {
    throw ViewsAlive("item: " + std::to_string(views) + " views of it are alive (tensors, arrays " +
                     "or memoryviews over its slab); delete or copy them before release");
  }
  give_back();
}

void Item::give_back() noexcept {
  open_ = false;
  Pool& pool = consumer_->pool();
  bump(consumer_->lane().items_released);
  pool.free_cell(cell_);
}

Consumer::Consumer(std::shared_ptr<Pool> pool, const std::string& ring)
    : pool_(std::move(pool)), ring_(pool_->ring_number(ring)) {
  lane_ = pool_->join(LaneRole::kConsumer);
}

void Consumer::check_open() const {
  pool_->check_open();
  if (closed_) throw PoolClosed("consumer: it is closed; make another");
}

std::shared_ptr<Item> Consumer::try_get() {
  check_open();
  const Control& control = pool_->control();
  Lane& mine = **lane_;
  for (;;) {
    const std::uint32_t c = control.ring(ring_).pop(lane_->number(), mine.intent);
    if (c == lockfree::IndexRing<>::kNone) return nullptr;
    bump(mine.items_taken);
    const Cell& cell = control.cell(c);
    const Descriptor descriptor = cell.descriptor;
    const std::byte* data = pool_->resolve(descriptor.address, descriptor.bytes);
    if (data != nullptr && descriptor.address == cell.slab &&
        descriptor.bytes <= cell.slab_bytes) {
      return std::make_shared<Item>(shared_from_this(), c, descriptor, cell.attempt, data);
    }
    // The holder of its memory died before this process had mapped it; counted, never hidden.
    bump(mine.items_lost);
    pool_->free_cell(c);
  }
}

std::shared_ptr<Item> Consumer::get(double timeout_s, const Interrupted& interrupted) {
  check_open();
  const Deadline deadline = Deadline::in(timeout_s);
  const auto ring = pool_->control().ring(ring_);
  lockfree::Event& filled = pool_->control().ring_header(ring_).filled;
  for (;;) {
    if (auto item = try_get()) return item;
    bool stop = false;
    const bool some = filled.wait(deadline, kSpinNs, [&]() noexcept {
      return !ring.looks_empty() || pool_->closed() || (stop = interrupted && interrupted());
    });
    if (stop) return nullptr;
    if (some) continue;
    throw PoolTimeout("pool '" + pool_->name() + "', ring '" +
                      pool_->control().ring_header(ring_).name + "': nothing arrived within " +
                      std::to_string(timeout_s) + " s; slabs are held by: " + pool_->holders() +
                      "; is a producer running? otherwise raise timeout_s");
  }
}

}  // namespace flowtrain::channel
