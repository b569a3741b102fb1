#include "transport/sockets/connection.hpp"

#include <sys/socket.h>

#include <cerrno>
#include <cstring>

#include "base/error.hpp"

namespace flowtrain::transport {

Connection::Connection(int epoll, os::Fd socket) : epoll_(epoll), socket_(std::move(socket)) {
  epoll_event event{EPOLLIN, {.ptr = this}};
  if (::epoll_ctl(epoll_, EPOLL_CTL_ADD, socket_.get(), &event) != 0) {
    throw_errno("transport sockets: cannot wait for a connection");
  }
}

void Connection::close(bool reset) {
  const linger now{1, 0};
  if (reset) ::setsockopt(socket_.get(), SOL_SOCKET, SO_LINGER, &now, sizeof(now));
  // To close it ends its events only if no forked child has it.
  if (socket_) ::epoll_ctl(epoll_, EPOLL_CTL_DEL, socket_.get(), nullptr);
  socket_.reset();
}

void Connection::want_write(bool wanted) {
  if (wanted == wants_write_ || !is_open()) return;
  epoll_event event{EPOLLIN | (wanted ? EPOLLOUT : 0U), {.ptr = this}};
  ::epoll_ctl(epoll_, EPOLL_CTL_MOD, socket_.get(), &event);
  wants_write_ = wanted;
}

std::string Connection::failure() const {
  const int code = errno;
  int pending = 0;
  socklen_t size = sizeof(pending);
  ::getsockopt(socket_.get(), SOL_SOCKET, SO_ERROR, &pending, &size);
  return std::strerror(pending != 0 ? pending : code);
}

}  // namespace flowtrain::transport
