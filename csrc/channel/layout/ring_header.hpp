#pragma once

#include "base/math.hpp"
#include "base/relaxed.hpp"
#include "lockfree/index_ring.hpp"
#include "os/event.hpp"

namespace flowtrain::channel {

/// A ring without its slots.
struct alignas(kCacheLine) RingHeader {
  RelaxedText name;
  os::Event filled;  ///< An item was published.
  lockfree::RingHints hints;
};

static_assert(sizeof(RingHeader) == 4 * kCacheLine);

}  // namespace flowtrain::channel
