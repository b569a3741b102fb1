#include "channel/item.hpp"

#include "base/error.hpp"
#include "channel/cells/release.hpp"
#include "channel/consumer.hpp"

namespace flowtrain::channel {

Item::Item(std::shared_ptr<Consumer> consumer, std::uint32_t cell, const Descriptor& descriptor,
           std::int64_t taken_ns, SlabView view)
    : consumer_(std::move(consumer)),
      cell_(cell),
      taken_ns_(taken_ns),
      descriptor_(descriptor),
      slab_(std::move(view)) {
  const Control& control = consumer_->pool().control();
  word_ = control.word(cell).load(std::memory_order_relaxed);
  attempt_ = control.cell(cell).attempt;
  producer_ = control.label_of(descriptor_.producer);
}

Item::~Item() {
  if (open_) give_back();
}

const Pool& Item::pool() const { return consumer_->pool(); }

void Item::release() {
  pool().check_not_forked();
  if (!open_) throw PoolClosed("item: it was released or given back already; get another");
  views_.check_none("item", "release");
  open_ = false;
  if (!holds_cell()) {
    throw PoolCorrupt(
        "item: the slab of cell " + std::to_string(cell_) + " was reused before this " +
        "consumer released it; the control file was damaged: make " + "the pool anew");
  }
  consumer_->note_released(cell_, descriptor_, taken_ns_);
  release_cell(consumer_->pool().control(), cell_);
}

void Item::give_back() noexcept {
  open_ = false;
  // In a forked child the cell is still the parent's.
  if (!pool().forked() && holds_cell()) consumer_->redeliver(cell_, descriptor_);
}

bool Item::holds_cell() const noexcept {
  return consumer_->pool().control().word(cell_).load(std::memory_order_relaxed) == word_;
}

}  // namespace flowtrain::channel
