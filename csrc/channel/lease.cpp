#include "channel/lease.hpp"

#include "base/error.hpp"
#include "channel/producer.hpp"

namespace flowtrain::channel {

using memory::StreamHandle;

Lease::Lease(std::shared_ptr<Producer> producer, const LeasedCell& leased, const Layout& layout,
             SlabView view)
    : producer_(std::move(producer)), leased_(leased), layout_(layout), slab_(std::move(view)) {
  if (slab_.streams) generation_ = pool().control().streams().begin(leased_.cell);
}

const Pool& Lease::pool() const { return producer_->pool(); }

memory::Address Lease::address() const {
  return producer_->pool().control().cell(leased_.cell).slab;
}

void Lease::publish(const Key& key, std::optional<StreamHandle> stream) {
  pool().check_not_forked();  // A thread that held the producer's mutex may not exist here.
  check_unused("lease", "publish");
  if (slab_.streams || stream) finish_write(stream);
  const Producer::Publication publication{leased_, layout_, key, generation_};
  producer_->publish({&publication, 1});
  open_ = false;
}

void Lease::shrink(const Layout& layout) {
  pool().check_not_forked();
  check_unused("lease", "shrink");
  if (layout.bytes > layout_.bytes) {
    throw BadArgument("shrink: a shape of " + std::to_string(layout.bytes) +
                      " bytes exceeds the lease of " + std::to_string(layout_.bytes) +
                      " bytes; lease the largest shape that the item may have");
  }
  if (layout.bytes < layout_.bytes) producer_->shrink(leased_, layout.bytes);
  layout_ = layout;
}

void Lease::check_unused(std::string_view what, const char* before) const {
  if (!open_) {
    throw PoolClosed(std::string(what) + " was published or aborted already; lease another slab");
  }
  check_not_written(what, before);
}

void Lease::check_not_written(std::string_view what, const char* before) const {
  if (writers_.load(std::memory_order_acquire) > 0) {  // sync: lease.writers
    throw ViewsAlive(std::string(what) + ": another thread is writing it; " + before +
                     " it once its write has returned");
  }
  views_.check_none(what, before);
}

void Lease::finish_write(std::optional<StreamHandle> stream) {
  if (!slab_.streams) {
    throw BadArgument("publish: stream=" + std::to_string(static_cast<std::int64_t>(*stream)) +
                      ": the slab is in memory of the host, which no stream orders; publish it " +
                      "without a stream, once all writes are complete");
  }
  if (written_) {
    throw PoolClosed("publish: an earlier publish of this lease failed after its write was " +
                     std::string("enqueued; abort it, and lease another slab"));
  }
  const StreamHandle on = stream.value_or(stream_.value_or(memory::kByHost));
  Pool& pool = producer_->pool();
  pool.check_open();
  if (on != memory::kByHost) {
    pool.segments()
        .streams()
        .on(slab_.memory->place())
        .publish_on(on, leased_.cell, generation_, producer_->lane());
  } else if (!pool.control().streams().finish_write(leased_.cell, generation_)) {
    throw PoolCorrupt("publish: the stream words of cell " + std::to_string(leased_.cell) +
                      " were changed; the control file was damaged: make the pool anew");
  }
  written_ = true;
  stream_ = on;
}

void Lease::skip_to_read(std::optional<StreamHandle> stream) {
  const StreamHandle on = stream.value_or(stream_.value_or(memory::kByHost));
  if (on == memory::kByHost) return;
  Pool& pool = producer_->pool();
  const memory::StreamSteps& steps = pool.segments().streams().on(slab_.memory->place());
  if (!written_) steps.release_on(on, leased_.cell, generation_, producer_->lane());
  pool.wait_if_closed(steps, on);
}

void Lease::abort(std::optional<StreamHandle> stream) {
  if (!open_) return;
  check_not_written("lease", "abort");
  // In a forked child the cell and its streams are still the parent's, as in `release`.
  if (slab_.streams && !producer_->pool().forked()) skip_to_read(stream);
  stream_.reset();
  release();
}

void Lease::release() noexcept {
  if (!open_) return;
  open_ = false;
  // In a forked child the cell is still the parent's.
  if (producer_->pool().forked()) return;
  try {
    if (slab_.streams) skip_to_read({});
  } catch (const std::exception&) {
    return;  // The slab stays this lane's: see Pool::try_leave.
  }
  producer_->abort(leased_, layout_.bytes);
}

}  // namespace flowtrain::channel
