#include "transport/ucx/outgoing.hpp"

#include <algorithm>
#include <cstring>
#include <utility>

namespace flowtrain::transport::ucx {

Outgoing::Outgoing(Engine& engine, const PeerAddress& peer, const Session& session,
                   Receiver& receiver)
    : Endpoint(engine, engine.make_worker()),
      peer_(peer.host),
      own_address_(peer_text(engine.host(), worker_->address())),
      session_(session.id),
      receiver_(receiver) {
  open(peer.worker, "transport UCX: cannot connect to " + peer_);
}

void Outgoing::greet(const Ticket& ticket) {
  Frame hello;
  hello.session = session_;
  std::copy(ticket.begin(), ticket.end(), hello.header.begin());
  Endpoint::send(hello, reinterpret_cast<const std::byte*>(own_address_.data()),
                 own_address_.size());
}

std::optional<std::uint64_t> Outgoing::place(const Grant& grant, const Header& header,
                                             const std::byte* data, std::uint64_t bytes) {
  if (!can_take()) return std::nullopt;
  Frame frame;
  frame.kind = FrameKind::kPlace;
  frame.number = ++numbered_;
  frame.slot = grant.slot;
  frame.generation = grant.generation;
  frame.region = grant.region;
  frame.offset = grant.offset;
  frame.bytes = bytes;
  frame.header = header;
  put(frame, data, bytes);
  return frame.number;
}

bool Outgoing::send(const Header& header) {
  if (!can_take()) return false;
  Frame frame;
  frame.kind = FrameKind::kMessage;
  frame.header = header;
  put(frame, nullptr, 0);
  return true;
}

void Outgoing::put(Frame frame, const std::byte* data, std::uint64_t bytes) {
  frame.session = session_;
  pending_.add();
  if (is_welcome_) {
    Endpoint::send(frame, data, bytes);
  } else {
    waiting_.push_back({frame, data, bytes});
  }
}

void Outgoing::sent(const Frame& frame) {
  if (frame.kind == FrameKind::kHello) return;
  if (frame.kind == FrameKind::kMessage) {
    pending_.remove(1);
  } else {
    pending_.moved();
  }
}

Status Outgoing::on_message(const void* header, std::size_t header_bytes, void*, std::size_t,
                            bool) noexcept {
  Frame frame;
  if (header_bytes == sizeof(frame)) {
    std::memcpy(&frame, header, sizeof(frame));
  } else {
    frame.magic = 0;
  }
  tell(Event::Kind::kFrame, frame);
  return kOk;
}

void Outgoing::handle(const Event& event) {
  const Frame& frame = event.frame;
  if (event.kind == Event::Kind::kFailed) {
    fail(engine_.calls().status_string(event.status));
  } else if (frame.magic != Frame::kMagic) {
    fail("the peer sent bytes that are no frame");
  } else if (frame.kind == FrameKind::kRefused) {
    fail(frame.reason == Reason::kNone
             ? "the peer has ended the session"
             : "the peer refused a frame: " + std::string(text(frame.reason)));
  } else if (frame.kind == FrameKind::kHello && !is_welcome_) {
    is_welcome_ = true;
    for (const Item& item : std::exchange(waiting_, {})) {
      Endpoint::send(item.frame, item.data, item.bytes);
    }
  } else if (frame.kind == FrameKind::kAck && frame.number > acknowledged_ &&
             frame.number <= numbered_) {
    acknowledge(frame.number);
  } else {
    fail("the peer acknowledged placement " + std::to_string(frame.number) + " of " +
         std::to_string(numbered_) + " sent and " + std::to_string(acknowledged_) +
         " acknowledged");
  }
}

void Outgoing::acknowledge(std::uint64_t number) {
  while (is_open() && acknowledged_ < number) {
    pending_.remove(1);
    receiver_.on_acknowledged(session_, ++acknowledged_);
  }
}

void Outgoing::abort() {
  if (error_.empty()) end("the link to " + peer_ + " was aborted");
}

void Outgoing::fail(const std::string& why) {
  end("link to " + peer_ + " over UCX, with " + std::to_string(pending_.count()) +
      " pending: " + why);
  receiver_.on_closed(session_, error_);
}

void Outgoing::end(const std::string& error) {
  error_ = error;
  waiting_.clear();
  pending_.clear();
  close();
}

}  // namespace flowtrain::transport::ucx
