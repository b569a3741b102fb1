#pragma once

#include <sched.h>
#include <time.h>

#include "channel/liveness/reaper.hpp"
#include "torture/ledger.hpp"

namespace flowtrain::torture {

using channel::ReapPoint;

/// Slot of the participant that this process runs.
inline ParticipantSlot* own_slot = nullptr;
inline std::uint64_t random_state = 1;

inline std::uint64_t draw() noexcept {  // xorshift64*
  random_state ^= random_state >> 12;
  random_state ^= random_state << 25;
  random_state ^= random_state >> 27;
  return random_state * 0x2545F4914F6CDD1D;
}

/// Sleeps or yields for some microseconds in one of `period` calls, so that other participants run
/// in between. `period` is a power of two.
inline void random_delay(std::uint64_t period) noexcept {
  const std::uint64_t bits = draw() >> 32;
  if (bits % period != 0) return;
  if (bits % (2 * period) == 0) {
    const timespec nap{0, static_cast<long>(bits >> 8) % 200'000};
    ::nanosleep(&nap, nullptr);
  } else {
    for (std::uint64_t i = 0; i < (bits >> 8) % 8; ++i) ::sched_yield();
  }
}

/// Delays at the ring's hook points.
struct RingDelays {
  static void at(lockfree::RingPoint point) noexcept {
    const bool inside = point != lockfree::RingPoint::kDone;
    own_slot->window.store(inside ? 1 : 0, std::memory_order_relaxed);
    if (inside) random_delay(16);
  }
};

/// The shipped protocol, with delays.
struct Shipped {
  static constexpr bool kPublishing = true;
  static constexpr bool kTaking = true;
  static constexpr bool kGeneration = true;

  using Hooks = RingDelays;
  static constexpr bool kChecksAgain = true;
  static void at(ReapPoint) noexcept {
    own_slot->window.store(1, std::memory_order_relaxed);
    random_delay(2);  // A reaper runs rarely, and reads words that change fast.
  }
};

struct WithoutPublishing : Shipped {
  static constexpr bool kPublishing = false;
};
struct WithoutTaking : Shipped {
  static constexpr bool kTaking = false;
};
struct WithoutRecheck : Shipped {
  static constexpr bool kChecksAgain = false;
};
struct WithoutGeneration : Shipped {
  static constexpr bool kGeneration = false;
};

}  // namespace flowtrain::torture
