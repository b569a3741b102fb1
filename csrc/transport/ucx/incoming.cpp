#include "transport/ucx/incoming.hpp"

#include <cstring>
#include <utility>

#include "base/clock.hpp"
#include "base/error.hpp"

namespace flowtrain::transport::ucx {

Incoming::Incoming(Engine& engine, const Door::Guest& guest, GrantTable& grants, Receiver& receiver)
    : Endpoint(engine, engine.worker()),
      grants_(grants),
      receiver_(receiver),
      session_(guest.session) {
  const PeerAddress peer = parse_peer(guest.address);
  peer_ = peer.host;
  open(peer.worker, "transport UCX: cannot answer " + peer_);
  if (ep() != guest.from) {
    throw UcxError("link from " + peer_ + " over UCX: it ended before it was answered, or the " +
                   "peer gave the address of another");
  }
}

void Incoming::welcome() {
  Frame frame;
  frame.session = session_;
  send(frame, nullptr, 0);
}

void Incoming::expire(std::int64_t ns) {
  if (!is_open() || !is_refused_ || now_ns() - refused_ns_ <= ns) return;
  close();
  end_refused();
}

void Incoming::dismiss() {
  unreported_ = Reason::kNone;
  // Over TCP, UCX keeps the connection of an endpoint that it has not opened itself until the peer
  // closes it: an endpoint that is closed without a word is noticed after 20 s.
  if (is_open() && !is_refused_) send_refusal(Reason::kNone);
  close();
}

Status Incoming::on_message(const void* header, std::size_t header_bytes, void* data,
                            std::size_t bytes, bool announced) noexcept {
  // Payloads of a peer that has been refused are dropped, and it is not told so again.
  if (is_refused_) return kOk;
  Frame frame;
  Reason reason = Reason::kNotAFrame;
  if (header_bytes == sizeof(frame)) {
    std::memcpy(&frame, header, sizeof(frame));
    reason = check(frame, data, bytes, announced);
  }
  if (reason != Reason::kNone) {
    is_refused_ = true;
    frame.reason = reason;
    tell(Event::Kind::kRefused, frame);
    return kOk;
  }
  // UCX keeps the descriptor of what it is to move.
  return announced ? kInProgress : kOk;
}

Reason Incoming::check(const Frame& frame, void* data, std::size_t bytes, bool announced) {
  if (frame.magic != Frame::kMagic) return Reason::kNotAFrame;
  if (frame.session != session_) return Reason::kUnknownSession;
  if (frame.kind == FrameKind::kPlace) return place(frame, data, bytes, announced);
  if (frame.kind != FrameKind::kMessage || bytes > 0 || announced) return Reason::kNotAFrame;
  tell(Event::Kind::kFrame, frame);
  return Reason::kNone;
}

Reason Incoming::place(const Frame& frame, void* data, std::size_t bytes, bool announced) {
  if (!is_expected(frame.number)) return Reason::kNotAFrame;
  const auto [reason, to] = grants_.begin(frame);
  if (reason != Reason::kNone) return reason;
  if (bytes != frame.bytes) return Reason::kWrongLength;
  arrived_.set(frame.number % kWindow);
  if (announced) {
    receive(frame, data, to, engine_.handle_of(to, bytes));
  } else {
    if (bytes > 0) std::memcpy(to, data, bytes);
    received(frame);
  }
  return Reason::kNone;
}

bool Incoming::is_expected(std::uint64_t number) const {
  return number > placed_ && number - placed_ <= kWindow && !arrived_.test(number % kWindow);
}

void Incoming::received(const Frame& frame) { tell(Event::Kind::kPlaced, frame); }

void Incoming::sent(const Frame& frame) {
  if (frame.kind == FrameKind::kAck) is_telling_ = false;
}

void Incoming::handle(const Event& event) {
  const Frame& frame = event.frame;
  if (event.kind == Event::Kind::kRefused) return refuse(frame.reason);
  if (is_refused_ && event.kind == Event::Kind::kPlaced) return end_refused();
  if (event.kind == Event::Kind::kFailed) {
    return fail(engine_.calls().status_string(event.status));
  }
  if (event.kind == Event::Kind::kFrame) return receiver_.on_message(session_, frame.header);
  receiver_.on_placed(grants_.finish(frame));
  done_.set(frame.number % kWindow);
  while (done_.test((placed_ + 1) % kWindow)) {
    ++placed_;
    done_.reset(placed_ % kWindow);
    arrived_.reset(placed_ % kWindow);
  }
}

void Incoming::acknowledge() {
  if (!is_open() || is_refused_ || is_telling_ || told_ == placed_) return;
  told_ = placed_;
  is_telling_ = true;
  Frame frame;
  frame.kind = FrameKind::kAck;
  frame.session = session_;
  frame.number = told_;
  send(frame, nullptr, 0);
}

void Incoming::refuse(Reason reason) {
  unreported_ = reason;
  refused_ns_ = now_ns();
  // Closed by the peer or when it is overdue: a peer that is closed at once may lose the reason.
  send_refusal(reason);
  end_refused();
}

void Incoming::send_refusal(Reason reason) {
  Frame frame;
  frame.kind = FrameKind::kRefused;
  frame.session = session_;
  frame.reason = reason;
  send(frame, nullptr, 0);
}

void Incoming::end_refused() {
  if (unreported_ == Reason::kNone || (is_open() && num_receives() > 0)) return;
  const Refusal refusal{session_, peer_, std::exchange(unreported_, Reason::kNone)};
  grants_.dismiss(session_);
  receiver_.on_refused(refusal);
}

void Incoming::fail(const std::string& why) {
  close();
  if (is_refused_) return end_refused();
  grants_.dismiss(session_);
  receiver_.on_closed(session_, "link from " + peer_ + " over UCX: " + why);
}

}  // namespace flowtrain::transport::ucx
