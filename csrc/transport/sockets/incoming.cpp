#include "transport/sockets/incoming.hpp"

#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/socket.h>
#include <sys/uio.h>

#include <algorithm>
#include <array>
#include <cerrno>

#include "base/clock.hpp"
#include "transport/sockets/endpoint.hpp"

namespace flowtrain::transport {

Incoming::Incoming(int epoll, os::Fd socket, GrantTable& grants, Receiver& receiver)
    : Connection(epoll, std::move(socket)), grants_(grants), receiver_(receiver) {
  const int on = 1;
  ::setsockopt(this->socket(), IPPROTO_TCP, TCP_NODELAY, &on, sizeof(on));
  peer_ = peer_address(this->socket());
  since_ns_ = now_ns();
}

bool Incoming::is_overdue(std::int64_t ns) const {
  return is_open() && (session_ == 0 || is_refused_) && now_ns() - since_ns_ > ns;
}

void Incoming::on_ready(std::uint32_t events) {
  if (is_refused_) {
    discard();
  } else {
    read();
  }
  if (is_open() && (events & EPOLLOUT) != 0) write();
}

void Incoming::read() {
  std::size_t turn = 0;
  while (is_open() && !is_refused_ && turn < kTurnBytes && read_some(turn)) {
  }
  if (is_open() && out_bytes_ == 0 && told_ < placed_) write();
}

bool Incoming::read_some(std::size_t& turn) {
  // The frame after a payload comes with it: saves a system call for each.
  std::array<iovec, 2> parts{};
  int count = 0;
  if (left_ > 0) parts[count++] = {to_, left_};
  parts[count++] = {reinterpret_cast<std::byte*>(&in_) + in_bytes_, sizeof(in_) - in_bytes_};
  const std::size_t asked = left_ + sizeof(in_) - in_bytes_;
  const ssize_t got = ::readv(socket(), parts.data(), count);
  if (got < 0 && errno == EINTR) return true;
  if (got < 0 && (errno == EAGAIN || errno == EWOULDBLOCK)) return false;
  if (got <= 0) {
    fail(got == 0 ? "the peer closed the connection" : failure());
    return false;
  }
  turn += static_cast<std::size_t>(got);
  const std::uint64_t of_payload = std::min<std::uint64_t>(left_, static_cast<std::uint64_t>(got));
  to_ += of_payload;
  left_ -= of_payload;
  in_bytes_ += static_cast<std::size_t>(got) - of_payload;
  if (of_payload > 0 && left_ == 0) placed();
  if (is_open() && in_bytes_ == sizeof(in_)) {
    in_bytes_ = 0;
    handle(in_);
  }
  return static_cast<std::size_t>(got) == asked;
}

void Incoming::handle(const Frame& frame) {
  if (frame.magic != Frame::kMagic) return refuse(Reason::kNotAFrame);
  if (session_ == 0) {
    if (frame.kind != FrameKind::kHello) return refuse(Reason::kUnknownSession);
    const Reason reason = grants_.open(frame.session, frame.header);
    if (reason != Reason::kNone) return refuse(reason);
    session_ = frame.session;
    return;
  }
  if (frame.session != session_) return refuse(Reason::kUnknownSession);
  if (frame.kind == FrameKind::kMessage) return receiver_.on_message(session_, frame.header);
  if (frame.kind == FrameKind::kPlace) return place(frame);
  refuse(Reason::kNotAFrame);
}

void Incoming::place(const Frame& frame) {
  if (frame.number != placed_ + 1) return refuse(Reason::kNotAFrame);
  const auto [reason, data] = grants_.begin(frame);
  if (reason != Reason::kNone) return refuse(reason);
  placing_ = frame;
  to_ = data;
  left_ = frame.bytes;
  if (left_ == 0) placed();
}

void Incoming::placed() {
  const Placement placement = grants_.finish(placing_);
  placed_ = placing_.number;
  receiver_.on_placed(placement);
}

void Incoming::write() {
  while (is_open()) {
    if (out_bytes_ == 0) {
      if (told_ == placed_ || is_refused_) break;
      told_ = placed_;
      out_ = {};
      out_.kind = FrameKind::kAck;
      out_.session = session_;
      out_.number = told_;
      out_bytes_ = sizeof(out_);
    }
    const char* const from = reinterpret_cast<const char*>(&out_) + sizeof(out_) - out_bytes_;
    const ssize_t sent = ::send(socket(), from, out_bytes_, MSG_NOSIGNAL | MSG_DONTWAIT);
    if (sent < 0 && errno == EINTR) continue;
    if (sent < 0) {
      if (errno != EAGAIN && errno != EWOULDBLOCK) return fail(failure());
      break;
    }
    out_bytes_ -= static_cast<std::size_t>(sent);
  }
  want_write(out_bytes_ > 0);
}

void Incoming::refuse(Reason reason) {
  const Refusal refusal{session_, peer_, reason};
  if (session_ == 0) {
    close();  // A stranger is told nothing.
  } else {
    is_refused_ = true;
    since_ns_ = now_ns();
    left_ = 0;
    if (out_bytes_ == 0) {
      out_ = {};
      out_.kind = FrameKind::kRefused;
      out_.session = session_;
      out_.reason = reason;
      out_bytes_ = sizeof(out_);
      write();
    }
    // Not closed yet: a close with unread bytes is a reset, by which the peer would lose the
    // reason.
    if (is_open()) ::shutdown(socket(), SHUT_WR);
    grants_.dismiss(session_);
  }
  receiver_.on_refused(refusal);
}

void Incoming::discard() {
  // With MSG_TRUNC the kernel drops the bytes without a copy.
  const ssize_t got = ::recv(socket(), nullptr, kTurnBytes, MSG_TRUNC | MSG_DONTWAIT);
  if (got == 0 || (got < 0 && errno != EAGAIN && errno != EWOULDBLOCK && errno != EINTR)) close();
}

void Incoming::fail(const std::string& why) {
  close();
  if (session_ == 0 || is_refused_) return;
  grants_.dismiss(session_);
  const std::string cut = left_ > 0
                              ? ", with " + std::to_string(left_) + " of " +
                                    std::to_string(placing_.bytes) + " bytes of a payload missing"
                              : "";
  receiver_.on_closed(session_, "link from " + peer_ + " over sockets: " + why + cut);
}

}  // namespace flowtrain::transport
