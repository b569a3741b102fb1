#include "channel/item.hpp"

#include <utility>

#include "base/error.hpp"
#include "channel/cells/release.hpp"
#include "channel/consumer.hpp"

namespace flowtrain::channel {

using memory::StreamHandle;

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
  if (open_) redeliver();
}

const Pool& Item::pool() const { return consumer_->pool(); }

void Item::wait(StreamHandle stream) {
  pool().check_not_forked();
  if (!open_) throw PoolClosed("item: it was released or given back already; get another");
  if (!slab_.streams || slab_.data != nullptr) return;
  consumer_->pool()
      .segments()
      .streams()
      .on(slab_.memory->place())
      .wait_written(stream, cell_, descriptor_.generation);
  stream_ = stream;
}

void Item::use_on(StreamHandle stream) {
  if (stream != memory::kByHost) return wait(stream);
  stream_ = stream;
}

std::string Item::text() const {
  return "item: pool '" + pool().name() + "', cell " + std::to_string(cell_) + ", key " +
         std::to_string(descriptor_.key_low) +
         (descriptor_.key_high == 0 ? "" : " + 2**64 * " + std::to_string(descriptor_.key_high)) +
         " of " + (producer_.empty() ? "an unnamed producer" : "'" + producer_ + "'");
}

void Item::finish_read(std::optional<StreamHandle> stream) {
  if (!slab_.streams) {
    throw BadArgument("release: stream=" + std::to_string(static_cast<std::int64_t>(*stream)) +
                      ": the slab is in memory of the host, which no stream orders; release it " +
                      "without a stream, once all reads are complete");
  }
  const StreamHandle on = stream.value_or(stream_.value_or(memory::kByHost));
  Pool& pool = consumer_->pool();
  if (on != memory::kByHost) {
    const memory::StreamSteps& steps = pool.segments().streams().on(slab_.memory->place());
    // Otherwise `read` could be written before `written`.
    if (stream_ != on) wait(on);
    steps.release_on(on, cell_, descriptor_.generation, consumer_->lane());
    return pool.wait_if_closed(steps, on);
  }
  const memory::StreamPage streams = pool.control().streams();
  if (streams.finish_read(cell_, descriptor_.generation)) return;
  throw StaleAddress(text() + ": its producer's stream has not written the data yet; give " +
                     "release the stream that reads it, or wait");
}

void Item::confirm() const {
  if (!slab_.streams) return;
  const memory::StreamPage streams = consumer_->pool().control().streams();
  if (streams.written(cell_, descriptor_.generation) == memory::Progress::kPending) {
    throw BadArgument(text() + ": the data is not written yet; call confirm once the stream that " +
                      "waited for it has passed");
  }
  if (streams.confirm(cell_, descriptor_.generation)) return;
  throw StaleAddress(text() +
                     ", which died before its stream had written the data: what was read " +
                     "is not the data; discard it, and have the item made again");
}

void Item::release(std::optional<StreamHandle> stream) {
  pool().check_not_forked();
  if (!open_) throw PoolClosed("item: it was released or given back already; get another");
  views_.check_none("item", "release");
  if (slab_.streams || stream) finish_read(stream);
  open_ = false;
  if (!holds_cell()) {
    throw PoolCorrupt(
        "item: the slab of cell " + std::to_string(cell_) + " was reused before this " +
        "consumer released it; the control file was damaged: make " + "the pool anew");
  }
  consumer_->note_released(cell_, descriptor_, taken_ns_);
  release_cell(consumer_->pool().control(), cell_);
}

void Item::give_back() {
  if (!std::exchange(open_, false)) return;
  views_.when_none([this] { redeliver(); });
}

void Item::redeliver() noexcept {
  // In a forked child the cell is still the parent's.
  if (!pool().forked() && holds_cell()) consumer_->redeliver(cell_, descriptor_);
}

bool Item::holds_cell() const noexcept {
  return consumer_->pool().control().word(cell_).load(std::memory_order_relaxed) == word_;
}

}  // namespace flowtrain::channel
