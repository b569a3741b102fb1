#pragma once

#include <sched.h>
#include <time.h>

#include "channel/liveness/reaper.hpp"
#include "torture/ledger.hpp"

namespace flowtrain::torture {

using channel::ReapPoint;

/// Of the participant that this process is.
inline Seat* seat = nullptr;
inline std::uint64_t random_state = 1;

inline std::uint64_t draw() noexcept {  // xorshift64*
  random_state ^= random_state >> 12;
  random_state ^= random_state << 25;
  random_state ^= random_state >> 27;
  return random_state * 0x2545F4914F6CDD1D;
}

/// Now and then some microseconds, asleep or giving way, so that the others come in between.
/// One time in `rarity`, a power of two.
inline void dawdle(std::uint64_t rarity) noexcept {
  const std::uint64_t lot = draw() >> 32;
  if (lot % rarity != 0) return;
  if (lot % (2 * rarity) == 0) {
    const timespec nap{0, static_cast<long>(lot >> 8) % 200'000};
    ::nanosleep(&nap, nullptr);
  } else {
    for (std::uint64_t i = 0; i < (lot >> 8) % 8; ++i) ::sched_yield();
  }
}

/// The ring's points, with delays.
struct Delays {
  static void at(lockfree::RingPoint point) noexcept {
    const bool inside = point != lockfree::RingPoint::kDone;
    seat->window.store(inside ? 1 : 0, std::memory_order_relaxed);
    if (inside) dawdle(16);
  }
};

/// The protocol as it is shipped, but for the delays.
struct Whole {
  static constexpr bool kPublishing = true;
  static constexpr bool kTaking = true;
  static constexpr bool kGeneration = true;

  using Hooks = Delays;
  static constexpr bool kChecksAgain = true;
  static void at(ReapPoint) noexcept {
    seat->window.store(1, std::memory_order_relaxed);
    dawdle(2);  // A reaper is rare, and looks at what moves fast.
  }
};

struct WithoutPublishing : Whole {
  static constexpr bool kPublishing = false;
};
struct WithoutTaking : Whole {
  static constexpr bool kTaking = false;
};
struct WithoutRecheck : Whole {
  static constexpr bool kChecksAgain = false;
};
struct WithoutGeneration : Whole {
  static constexpr bool kGeneration = false;
};

}  // namespace flowtrain::torture
