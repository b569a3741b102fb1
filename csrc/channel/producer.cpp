#include "channel/producer.hpp"

#include <algorithm>

#include "base/error.hpp"

namespace flowtrain::channel {
namespace {

using lockfree::CellState;

constexpr std::int64_t kSpinNs = 20'000;

}  // namespace

memory::Address Lease::address() const { return producer_->pool().control().cell(cell_).slab; }

void Lease::publish(const Key& key) {
  Pool& pool = producer_->pool();
  pool.check_open();
  if (!open_) throw PoolClosed("lease: it was published or aborted already; lease another slab");
  Lane& lane = producer_->lane();
  const Control& control = pool.control();
  Cell& cell = control.cell(cell_);
  const std::uint64_t sequence = lane.items_published.load(std::memory_order_relaxed);
  cell.descriptor = {cell.slab,
                     layout_.bytes,
                     key.low,
                     key.high,
                     sequence,
                     {layout_.shape[0], layout_.shape[1], layout_.shape[2], layout_.shape[3]},
                     producer_->lane_number(),
                     layout_.dtype,
                     layout_.ndim,
                     0};
  cell.ring = producer_->ring();
  if (!control.ring(cell.ring).push(cell_, producer_->lane_number(), lane.intent)) {
    throw PoolCorrupt("pool '" + pool.name() + "': a ring is full, though it has a slot for every " +
                      "cell; the control file was damaged");
  }
  open_ = false;
  lane.items_published.store(sequence + 1, std::memory_order_relaxed);
  lane.bytes_published.store(
      lane.bytes_published.load(std::memory_order_relaxed) + layout_.bytes,
      std::memory_order_relaxed);
  control.ring_header(cell.ring).filled.notify();
}

void Lease::abort() noexcept {
  if (!open_) return;
  open_ = false;
  producer_->pool().free_cell(cell_);
}

Producer::Producer(std::shared_ptr<Pool> pool, const std::string& ring,
                   std::optional<std::uint32_t> segment, const Credits& credits)
    : pool_(std::move(pool)),
      ring_(static_cast<std::uint16_t>(pool_->ring_number(ring))),
      segment_(segment),
      credits_(credits) {
  pool_->check_open();
  if (credits.max_bytes < 1 || credits.max_items < 1) {
    throw BadArgument("producer: max_bytes=" + std::to_string(credits.max_bytes) +
                      " and max_items=" + std::to_string(credits.max_items) +
                      " must be at least 1");
  }
  if (segment && (*segment < 1 || *segment > kMaxSegments)) {
    throw BadArgument("producer: segment=" + std::to_string(*segment) + ": must be 1 to " +
                      std::to_string(kMaxSegments));
  }
  lane_ = pool_->join(LaneRole::kProducer);
}

std::shared_ptr<Lease> Producer::lease(const Layout& layout, double timeout_s,
                                       const Interrupted& interrupted) {
  pool_->check_open();
  if (closed_) throw PoolClosed("producer: it is closed; make another");
  check_size(layout.bytes);
  std::optional<std::uint32_t> cell;
  const bool found = pool_->control().header().space.wait(
      Deadline::in(timeout_s), kSpinNs, [&]() noexcept {
        if (has_credit(layout.bytes)) cell = try_allocate(layout.bytes);
        return cell.has_value() || pool_->closed() || (interrupted && interrupted());
      });
  if (!found) throw_timeout(layout.bytes, timeout_s);
  pool_->check_open();
  if (!cell) return nullptr;
  std::byte* data = pool_->resolve(pool_->control().cell(*cell).slab, layout.bytes);
  if (data == nullptr) {
    pool_->free_cell(*cell);
    throw StaleAddress("pool '" + pool_->name() + "': a slab's segment cannot be mapped; its " +
                       "owner is gone, lease again");
  }
  return std::make_shared<Lease>(shared_from_this(), *cell, layout, data);
}

bool Producer::has_credit(std::uint64_t bytes) const noexcept {
  const Lane& mine = **lane_;
  const auto items = mine.inflight_items.load(std::memory_order_relaxed);
  const auto in_flight = mine.inflight_bytes.load(std::memory_order_relaxed);
  return items < credits_.max_items &&
         in_flight <= credits_.max_bytes - static_cast<std::int64_t>(bytes);
}

std::optional<std::uint32_t> Producer::try_allocate(std::uint64_t bytes) noexcept {
  const Control& control = pool_->control();
  if (segment_) return try_segment(control.segment(*segment_ - 1), bytes);
  for (const bool own : {true, false}) {
    for (std::uint32_t i = 0; i < kMaxSegments; ++i) {
      const SegmentEntry& entry = control.segment(i);
      if (entry.state.load(std::memory_order_acquire) == SegmentState::kEmpty) break;  // sync: segment.state
      if ((entry.owner == pool_->lane()) != own) continue;
      if (auto cell = try_segment(entry, bytes)) return cell;
    }
  }
  return std::nullopt;
}

std::optional<std::uint32_t> Producer::try_segment(const SegmentEntry& entry,
                                                   std::uint64_t bytes) noexcept {
  if (entry.state.load(std::memory_order_acquire) != SegmentState::kLive) return std::nullopt;  // sync: segment.state
  const Control& control = pool_->control();
  for (std::uint32_t k = 0; k < entry.num_classes; ++k) {
    const ClassEntry& size = entry.classes[k];
    if (size.slab_bytes < bytes) continue;
    for (std::uint32_t i = 0; i < size.count; ++i) {
      const std::uint32_t c = size.first + (hint_ + i) % size.count;
      lockfree::AtomicCell& word = control.word(c);
      lockfree::CellWord seen = word.load(std::memory_order_relaxed);
      if (lockfree::state_of(seen) != CellState::kFree ||
          !word.compare_exchange_strong(
              seen, lockfree::moved(seen, CellState::kOwned, lane_->number()),
              std::memory_order_acq_rel)) {  // sync: cell.word
        continue;
      }
      hint_ = c - size.first + 1;
      Lane& mine = **lane_;
      Cell& cell = control.cell(c);
      cell.attempt = 0;
      cell.credit_bytes = bytes;
      mine.inflight_bytes.fetch_add(static_cast<std::int64_t>(bytes), std::memory_order_relaxed);
      mine.inflight_items.fetch_add(1, std::memory_order_relaxed);
      cell.credit_lane = lane_->number();
      return c;
    }
  }
  return std::nullopt;
}

void Producer::check_size(std::uint64_t bytes) const {
  std::uint64_t largest = 0;
  const Control& control = pool_->control();
  for (std::uint32_t i = 0; i < kMaxSegments; ++i) {
    if (segment_ && i + 1 != *segment_) continue;
    const SegmentEntry& entry = control.segment(i);
    if (entry.state.load(std::memory_order_acquire) != SegmentState::kLive) continue;  // sync: segment.state
    for (std::uint32_t k = 0; k < entry.num_classes; ++k) {
      largest = std::max(largest, entry.classes[k].slab_bytes);
    }
  }
  if (largest == 0) {
    throw PoolSpace("pool '" + pool_->name() + "': no segment to lease from; its owner is gone or "
                    "none was made: give Pool.create bytes, or call add_segment");
  }
  if (bytes > largest) {
    throw BadArgument("pool '" + pool_->name() + "': a lease of " + std::to_string(bytes) +
                      " bytes exceeds the largest slab of " + std::to_string(largest) +
                      " bytes; make the pool larger, or give classes with such slabs");
  }
  if (static_cast<std::int64_t>(bytes) > credits_.max_bytes) {
    throw BadArgument("producer: a lease of " + std::to_string(bytes) + " bytes exceeds max_bytes=" +
                      std::to_string(credits_.max_bytes) + "; raise max_bytes");
  }
}

void Producer::throw_timeout(std::uint64_t bytes, double timeout_s) const {
  const Lane& mine = **lane_;
  const bool credit = has_credit(bytes);
  throw PoolTimeout(
      "pool '" + pool_->name() + "': no " + (credit ? "slab" : "credit") + " for " +
      std::to_string(bytes) + " bytes came free within " + std::to_string(timeout_s) + " s; " +
      (credit ? "slabs are held by: " + pool_->holders()
              : std::to_string(mine.inflight_items.load()) + " items and " +
                    std::to_string(mine.inflight_bytes.load()) + " bytes are in flight") +
      "; is a consumer running? otherwise raise timeout_s or the pool's size");
}

}  // namespace flowtrain::channel
