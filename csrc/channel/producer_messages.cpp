// Why a lease could not be had, for the errors of Producer.

#include <mutex>
#include <string>

#include "base/error.hpp"
#include "channel/cells/slab_maker.hpp"
#include "channel/producer.hpp"

namespace flowtrain::channel {
namespace {

std::string text_of(std::int64_t limit) {
  return limit == INT64_MAX ? "None" : std::to_string(limit);
}

}  // namespace

/// Which resource a lease lacks, and what limits it. In constant time: a caller that polls gets
/// PoolFull again and again, so only PoolTimeout names the holders.
std::string Producer::shortage(std::uint64_t bytes, Missing missing) const {
  const std::string lease = " for a lease of " + std::to_string(bytes) + " bytes";
  if (missing == Missing::kSlab) {
    std::string limits;
    for (std::uint32_t i = 0; i < pool_->control().num_segments(); ++i) {
      if (leases_from(i)) limits += SlabMaker::shortage(pool_->control(), i, bytes);
    }
    return "slab" + lease + limits + pool_->segments().unmapped();
  }
  const std::lock_guard lock(mutex_);
  return "credit" + lease + "; " + std::to_string(in_flight_.items()) + " items of " +
         std::to_string(in_flight_.bytes()) +
         " bytes are in flight, where max_items=" + text_of(credits_.max_items) +
         " and max_bytes=" + text_of(credits_.max_bytes);
}

std::string Producer::text() const {
  return "pool '" + pool_->name() + "', ring '" + pool_->control().ring_name(ring_) + "'";
}

void Producer::throw_full(std::uint64_t bytes, Missing missing) const {
  const std::string what = text() + ": no " + shortage(bytes, missing);
  if (credits_.when_full == WhenFull::kFail) {
    throw PoolFull(what + "; let a consumer release items, raise the limits, or wait: " +
                   "when_full='block'; `flowtrain top " + pool_->name() + "` shows all lanes");
  }
  throw PoolFull(what + "; segment " + std::to_string(tiers_.front()) +
                 " has no slab, and strict=True forbids spilling into another; make the segment " +
                 "larger, or give strict=False");
}

void Producer::throw_timeout(std::uint64_t bytes, Missing missing, double waited_s) const {
  throw PoolTimeout(text() + ": within " + std::to_string(waited_s) + " s there was no " +
                    shortage(bytes, missing) + "; slabs are held by: " + pool_->holders() +
                    "; is a consumer running? otherwise raise timeout_s or the limits");
}

}  // namespace flowtrain::channel
