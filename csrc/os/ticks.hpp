#pragma once

#include <sys/timerfd.h>
#include <unistd.h>

#include <cstdint>
#include <utility>

#include "base/error.hpp"
#include "os/fd.hpp"

namespace flowtrain::os {

/// A descriptor that becomes readable once a second while it runs.
class Ticks {
 public:
  Ticks() : fd_(::timerfd_create(CLOCK_MONOTONIC, TFD_NONBLOCK | TFD_CLOEXEC)) {
    if (!fd_) throw_errno("cannot make a timer");
  }

  const Fd& fd() const { return fd_; }

  void run(bool wanted) {
    if (std::exchange(runs_, wanted) == wanted) return;
    const timespec every{wanted ? 1 : 0, 0};
    const itimerspec set{every, every};
    ::timerfd_settime(fd_.get(), 0, &set, nullptr);
  }

  /// Makes it unreadable until the next tick.
  void clear() const {
    std::uint64_t expirations;
    static_cast<void>(::read(fd_.get(), &expirations, sizeof(expirations)));
  }

 private:
  Fd fd_;
  bool runs_ = false;
};

}  // namespace flowtrain::os
