#include "channel/item.hpp"

#include "base/error.hpp"
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
  if (open_) release_cell();
}

const Pool& Item::pool() const { return consumer_->pool(); }

void Item::release() {
  pool().check_not_forked();
  if (!open_) throw PoolClosed("item: it was released already; get another");
  views_.check_none("item", "release");
  const bool held = holds_cell();
  release_cell();
  if (!held) {
    throw PoolCorrupt(
        "item: the slab of cell " + std::to_string(cell_) + " was reused before this " +
        "consumer released it; the control file was damaged: make " + "the pool anew");
  }
}

bool Item::holds_cell() const noexcept {
  return consumer_->pool().control().word(cell_).load(std::memory_order_relaxed) == word_;
}

void Item::release_cell() noexcept {
  open_ = false;
  Pool& pool = consumer_->pool();
  // In a forked child the cell is still the parent's.
  if (pool.forked()) return;
  if (!holds_cell()) return;
  consumer_->note_released(cell_, descriptor_, taken_ns_);
  pool.control().release_cell(cell_);
}

}  // namespace flowtrain::channel
