#include "transport/ucx/outgoing.hpp"

#include <algorithm>
#include <cstring>
#include <utility>

namespace flowtrain::transport::ucx {

Outgoing::Outgoing(Engine& engine, const PeerAddress& peer, const Session& session,
                   Receiver& receiver)
    : Endpoint(engine, engine.make_worker()),
      FramedLink(peer.host, "UCX", session.id, receiver),
      own_address_(peer_text(engine.host(), worker_->address())) {
  open(peer.worker, "transport UCX: cannot connect to " + peer.host);
}

void Outgoing::greet(const Ticket& ticket) {
  Endpoint::send(hello(ticket), reinterpret_cast<const std::byte*>(own_address_.data()),
                 own_address_.size());
}

void Outgoing::put(const Frame& frame, const std::byte* data, std::uint64_t bytes) {
  if (is_connecting()) {
    waiting_.push_back({frame, data, bytes});
  } else {
    Endpoint::send(frame, data, bytes);
  }
}

void Outgoing::drop(bool) {
  waiting_.clear();
  close();
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
  } else if (frame.kind == FrameKind::kHello && is_connecting()) {
    connected();
    for (const Item& item : std::exchange(waiting_, {})) {
      Endpoint::send(item.frame, item.data, item.bytes);
    }
  } else if (frame.kind == FrameKind::kAck && !is_connecting()) {
    acknowledge_to(frame.number, numbered());
  } else {
    fail("the peer sent a frame of another kind");
  }
}

}  // namespace flowtrain::transport::ucx
