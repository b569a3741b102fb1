#pragma once

#include <fcntl.h>
#include <unistd.h>

#include <utility>

#include "base/error.hpp"

namespace flowtrain::os {

/// Owner of a file descriptor; closes it in its destructor.
class Fd {
 public:
  Fd() = default;
  explicit Fd(int fd) : fd_(fd) {}
  Fd(Fd&& other) noexcept : fd_(std::exchange(other.fd_, -1)) {}
  Fd& operator=(Fd&& other) noexcept {
    reset(std::exchange(other.fd_, -1));
    return *this;
  }
  ~Fd() { reset(); }

  int get() const { return fd_; }
  explicit operator bool() const { return fd_ >= 0; }
  void reset(int fd = -1) {
    if (fd_ >= 0) ::close(fd_);
    fd_ = fd;
  }

 private:
  int fd_ = -1;
};

/// Another descriptor of the same open file.
inline Fd duplicate(const Fd& fd) {
  Fd other(::fcntl(fd.get(), F_DUPFD_CLOEXEC, 0));
  if (!other) throw_errno("cannot duplicate a descriptor");
  return other;
}

}  // namespace flowtrain::os
