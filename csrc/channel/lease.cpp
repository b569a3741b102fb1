#include "channel/lease.hpp"

#include "base/error.hpp"
#include "channel/producer.hpp"

namespace flowtrain::channel {

const Pool& Lease::pool() const { return producer_->pool(); }

memory::Address Lease::address() const {
  return producer_->pool().control().cell(leased_.cell).slab;
}

void Lease::publish(const Key& key) {
  pool().check_not_forked();  // A thread that held the producer's mutex may not exist here.
  check_unused("lease", "publish");
  const Producer::Publication publication{leased_, layout_, key};
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

void Lease::abort() {
  if (!open_) return;
  check_not_written("lease", "abort");
  release();
}

void Lease::release() noexcept {
  if (!open_) return;
  open_ = false;
  // In a forked child the cell is still the parent's.
  if (!producer_->pool().forked()) producer_->abort(leased_, layout_.bytes);
}

}  // namespace flowtrain::channel
