#pragma once

#include <atomic>
#include <cstdint>
#include <thread>

#include "os/event.hpp"
#include "os/fd.hpp"

namespace flowtrain::gateway {

/// Makes an eventfd readable.
void wake(const os::Fd& eventfd) noexcept;

/// Makes a notification of an os::Event, for which only a thread can wait, an event of a
/// descriptor: so one thread waits for rings and sockets at once.
///
/// Memory:   none. The event and the descriptor outlive it.
/// Threads:  one, and one of its own that sleeps on the event's futex.
/// Progress: arm never waits. Another arm before a notification costs no wake.
/// Ordering: as os::Event: after arm the caller looks once more at what it waits for; what comes
///           later makes the descriptor readable.
/// Errors:   SystemCallError if the system has no thread left.
class Watch {
 public:
  /// @param wakes  An eventfd that is written at a notification.
  Watch(os::Event& event, const os::Fd& wakes, const std::string& what);
  ~Watch();
  Watch(const Watch&) = delete;
  Watch& operator=(const Watch&) = delete;

  void arm() noexcept;

 private:
  void work(const std::stop_token& stop) noexcept;

  os::Event& event_;
  const os::Fd& wakes_;
  std::uint32_t armed_ = 0;               // The last announcement that was handed over.
  std::atomic<std::uint32_t> handed_{0};  // Announcement to sleep on; 0 for none, as it is odd.
  std::jthread thread_;                   // Last: uses the others.
};

}  // namespace flowtrain::gateway
