#include "transport/sockets/outgoing.hpp"

#include <sys/socket.h>
#include <sys/uio.h>

#include <algorithm>
#include <array>
#include <cerrno>

#include "transport/sockets/endpoint.hpp"

namespace flowtrain::transport {

Outgoing::Outgoing(int epoll, const std::string& address, const Session& session,
                   Receiver& receiver)
    : Connection(epoll, connect_to(address)),
      FramedLink(address, "sockets", session.id, receiver),
      queue_{{hello(session.ticket), nullptr, 0}} {
  want_write(true);  // Tells when the connection stands.
}

void Outgoing::put(const Frame& frame, const std::byte* data, std::uint64_t bytes) {
  queue_.push_back({frame, data, bytes});
  // If more is waiting, events of the socket go on with it.
  if (queue_.size() == 1) write();
}

void Outgoing::drop(bool aborts) {
  queue_.clear();
  close(aborts);
}

void Outgoing::write() {
  std::size_t turn = 0;
  while (!queue_.empty() && turn < kTurnBytes) {
    std::array<iovec, kMaxParts> parts;
    std::size_t count = 0, asked = 0, skip = written_;
    for (Item& item : queue_) {
      if (count + 2 > kMaxParts || asked >= kTurnBytes) break;
      const auto add = [&](const void* data, std::size_t bytes) {
        const std::size_t skipped = std::min(skip, bytes);
        skip -= skipped;
        if (bytes == skipped) return;
        parts[count++] = {const_cast<char*>(static_cast<const char*>(data)) + skipped,
                          bytes - skipped};
        asked += bytes - skipped;
      };
      add(&item.frame, sizeof(item.frame));
      add(item.data, item.bytes);
    }
    msghdr message{};
    message.msg_iov = parts.data();
    message.msg_iovlen = count;
    const ssize_t sent = ::sendmsg(socket(), &message, MSG_NOSIGNAL | MSG_DONTWAIT);
    if (sent < 0 && errno == EINTR) continue;
    if (sent < 0) {
      // An error is left to the reading side, which first finds out why the peer has closed.
      if (errno != EAGAIN && errno != EWOULDBLOCK) write_error_ = failure();
      break;
    }
    advance(static_cast<std::size_t>(sent));
    turn += static_cast<std::size_t>(sent);
    if (static_cast<std::size_t>(sent) < asked) break;
  }
  want_write(!queue_.empty());
}

void Outgoing::advance(std::size_t bytes) {
  if (bytes > 0) {
    connected();
    pending_.moved();
  }
  written_ += bytes;
  while (!queue_.empty() && written_ >= sizeof(Frame) + queue_.front().bytes) {
    const Item& item = queue_.front();
    written_ -= sizeof(Frame) + item.bytes;
    if (item.frame.kind == FrameKind::kMessage) pending_.remove(1);
    if (item.frame.kind == FrameKind::kPlace) sent_ = item.frame.number;
    queue_.pop_front();
  }
}

void Outgoing::on_ready(std::uint32_t events) {
  if ((events & EPOLLIN) != 0) read();
  if (is_open() && write_error_.empty() && (events & EPOLLOUT) != 0) write();
  if (is_open() && ((events & (EPOLLERR | EPOLLHUP)) != 0 || !write_error_.empty())) {
    read();
    if (is_open()) fail(write_error_.empty() ? failure() : write_error_);
  }
}

void Outgoing::read() {
  while (is_open()) {
    const ssize_t got = ::recv(socket(), reinterpret_cast<char*>(&in_) + in_bytes_,
                               sizeof(in_) - in_bytes_, MSG_DONTWAIT);
    if (got < 0 && errno == EINTR) continue;
    if (got < 0 && (errno == EAGAIN || errno == EWOULDBLOCK)) return;
    if (got <= 0) return fail(got == 0 ? "the peer closed the connection" : failure());
    in_bytes_ += static_cast<std::size_t>(got);
    if (in_bytes_ < sizeof(in_)) return;
    in_bytes_ = 0;
    handle(in_);
  }
}

void Outgoing::handle(const Frame& frame) {
  if (frame.magic != Frame::kMagic) return fail("the peer sent bytes that are no frame");
  if (frame.kind == FrameKind::kRefused) {
    return fail("the peer refused a frame: " + std::string(text(frame.reason)));
  }
  if (frame.kind != FrameKind::kAck) return fail("the peer sent a frame of another kind");
  acknowledge_to(frame.number, sent_);
}

}  // namespace flowtrain::transport
