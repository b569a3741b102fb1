#pragma once

#include <unistd.h>

namespace flowtrain::os {

/// Whether the calling process is the one that made this object. A forked child must not end what
/// it inherited from its parent, such as the handles of a device.
class MadeHere {
 public:
  MadeHere() : pid_(::getpid()) {}
  explicit operator bool() const noexcept { return pid_ == ::getpid(); }

 private:
  pid_t pid_;
};

}  // namespace flowtrain::os
