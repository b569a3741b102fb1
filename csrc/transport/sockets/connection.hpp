#pragma once

#include <sys/epoll.h>

#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>
#include <utility>

#include "os/fd.hpp"

namespace flowtrain::transport {

/// A socket in an epoll set. Its events are level-triggered.
class Connection {
 public:
  /// Bytes that one call reads or writes at most, so that every connection gets its turn.
  static constexpr std::size_t kTurnBytes = 8 << 20;

  Connection(int epoll, os::Fd socket);
  virtual ~Connection() = default;
  Connection(const Connection&) = delete;
  Connection& operator=(const Connection&) = delete;

  virtual void on_ready(std::uint32_t events) = 0;
  bool is_open() const { return static_cast<bool>(socket_); }
  /// @param reset  Drop what the kernel has not sent yet.
  void close(bool reset = false);

 protected:
  int socket() const { return socket_.get(); }
  /// Whether events come when the socket can be written.
  void want_write(bool wanted);
  /// Text of the socket's error, or of errno if it has none.
  std::string failure() const;

 private:
  int epoll_;
  os::Fd socket_;
  bool wants_write_ = false;
};

}  // namespace flowtrain::transport
