#include "transport/fake.hpp"

#include <sys/eventfd.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <deque>
#include <random>
#include <set>
#include <utility>
#include <vector>

#include "base/error.hpp"
#include "os/fd.hpp"
#include "transport/framed_link.hpp"

namespace flowtrain::transport {

class FakeTransport;

namespace {

class FakeLink;

/// State of a link between two hosts.
struct Wire {
  FakeTransport* from;  // Both live until the wire is closed.
  FakeTransport* to;
  std::string from_address;
  std::string to_address;
  FakeLink* link = nullptr;   // Null for a raw peer.
  std::uint64_t session = 0;  // Once the receiver has opened it.
  bool is_closed = false;
};

/// A frame on its way, with the part of its payload that has not arrived.
struct Event {
  std::uint64_t due;
  std::shared_ptr<Wire> wire;
  Frame frame{};
  const std::byte* data = nullptr;
  std::uint64_t bytes = 0;
  std::byte* to = nullptr;  // Set once the receiver has accepted the placement.
  std::vector<std::byte> copy{};
  bool ends_wire = false;
};

}  // namespace

struct FakeNetwork::State {
  Options options;
  std::mt19937_64 random;
  std::uint64_t now = 0;
  std::vector<FakeTransport*> hosts;
  std::uint64_t num_opened = 0;
  std::set<std::pair<std::string, std::string>> cuts;

  explicit State(const Options& given) : options(given), random(given.seed) {}
  std::uint64_t later() { return now + 1 + random() % options.max_delay; }
  FakeTransport* find(const std::string& address) const;
  bool is_cut(const Wire& wire) const {
    return cuts.contains(std::minmax(wire.from_address, wire.to_address));
  }
};

namespace {

class FakeLink final : public FramedLink {
 public:
  FakeLink(const std::string& peer, std::uint64_t session, Receiver& receiver)
      : FramedLink(peer, "a fake", session, receiver) {}
  ~FakeLink() override { abort(); }

  using FramedLink::acknowledge;
  using FramedLink::fail;
  using FramedLink::hello;
  void sent() { pending_.remove(1); }
  void moved() { pending_.moved(); }

  std::shared_ptr<Wire> wire;

 private:
  void put(const Frame& frame, const std::byte* data, std::uint64_t bytes) override;
  void drop(bool aborts) override;
};

}  // namespace

class FakeTransport final : public Transport {
 public:
  FakeTransport(std::shared_ptr<FakeNetwork::State> net, Receiver& receiver,
                std::uint32_t max_grants)
      : Transport(receiver, max_grants),
        net_(std::move(net)),
        address_("fake:" + std::to_string(++net_->num_opened)),
        event_(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)) {
    if (!event_) throw_errno("transport fake: cannot make an eventfd");
    net_->hosts.push_back(this);
  }
  ~FakeTransport() override { die(); }

  void dismiss(std::uint64_t session) override {
    for (const auto& wire : incoming_) {
      if (wire->session == session) hang_up(wire, Reason::kNone);
    }
    grants_.dismiss(session);
  }
  std::string address() const override { return address_; }
  std::optional<std::uint32_t> add_device_region(std::uint64_t address,
                                                 std::uint64_t bytes) override {
    if (!net_->options.reads_devices) return std::nullopt;
    return add_region(reinterpret_cast<std::byte*>(address), bytes);
  }

  std::shared_ptr<Link> connect(const std::string& address, const Session& session) override {
    auto link = std::make_shared<FakeLink>(address, session.id, receiver_);
    link->wire = wire_to(address, link.get());
    link->wire->to->arrive(
        {.due = net_->now, .wire = link->wire, .frame = link->hello(session.ticket)});
    return link;
  }
  std::shared_ptr<Wire> wire_to(const std::string& address, FakeLink* link) {
    FakeTransport* const to = net_->find(address);
    if (to == nullptr) throw BadArgument("no fake host has the address '" + address + "'");
    auto wire = std::make_shared<Wire>(Wire{
        .from = this, .to = to, .from_address = address_, .to_address = address, .link = link});
    outgoing_.push_back(wire);
    to->incoming_.push_back(wire);
    return wire;
  }

  int progress_fd() const override { return event_.get(); }

  bool progress() override {
    ++net_->now;
    bool did = false;
    std::deque<Event> events;
    events.swap(events_);
    for (Event& event : events) {
      const bool waits = event.due > net_->now || net_->is_cut(*event.wire);
      if (waits || is_dead_) {
        if (!is_dead_) events_.push_back(std::move(event));
      } else {
        did = true;
        handle(event);
      }
    }
    if (std::uint64_t count; events_.empty()) {
      static_cast<void>(::read(event_.get(), &count, sizeof(count)));
    }
    const auto closed = [](const auto& wire) { return wire->is_closed; };
    std::erase_if(incoming_, closed);
    std::erase_if(outgoing_, closed);
    return did;
  }

  std::string explain() const override {
    return "a fake in one process at " + address_ + " with " + std::to_string(outgoing_.size()) +
           " links to others and " + std::to_string(incoming_.size()) + " from others";
  }

  void arrive(Event event) {
    if (is_dead_) return;
    events_.push_back(std::move(event));
    const std::uint64_t one = 1;
    static_cast<void>(::write(event_.get(), &one, sizeof(one)));
  }
  std::uint64_t later() { return net_->later(); }

  void die() {
    if (std::exchange(is_dead_, true)) return;
    for (const auto& wire : incoming_) hang_up(wire, Reason::kNone);
    for (const auto& wire : outgoing_) leave(wire);
    std::erase(net_->hosts, this);
  }
  /// Tells the receiver that the sender has gone.
  static void leave(const std::shared_ptr<Wire>& wire) {
    if (wire->is_closed) return;
    wire->is_closed = true;
    wire->to->arrive({.due = wire->to->later(), .wire = wire, .ends_wire = true});
  }

 private:
  /// Tells the sender that the receiver has gone, or why it refused.
  static void hang_up(const std::shared_ptr<Wire>& wire, Reason reason) {
    if (std::exchange(wire->is_closed, true)) return;
    Frame frame;
    frame.kind = FrameKind::kRefused;
    frame.reason = reason;
    wire->from->arrive(
        {.due = wire->from->later(), .wire = wire, .frame = frame, .ends_wire = true});
  }

  void handle(Event& event) {
    if (event.wire->from == this) {
      to_link(event);
    } else if (event.ends_wire) {
      end_session(*event.wire);
    } else if (!event.wire->is_closed) {
      const Reason reason = to_receiver(event);
      if (reason != Reason::kNone) refuse(event.wire, reason);
    }
  }

  void to_link(const Event& event) {
    FakeLink* const link = event.wire->link;
    if (link == nullptr) return;
    if (!event.ends_wire) return link->acknowledge(event.frame.number);
    link->fail(event.frame.reason == Reason::kNone
                   ? "the peer closed the connection"
                   : "the peer refused a frame: " + std::string(text(event.frame.reason)));
  }

  Reason to_receiver(Event& event) {
    const Frame& frame = event.frame;
    Wire& wire = *event.wire;
    if (frame.magic != Frame::kMagic) return Reason::kNotAFrame;
    if (wire.session == 0) {
      if (frame.kind != FrameKind::kHello) return Reason::kUnknownSession;
      const Reason reason = grants_.open(frame.session, frame.header);
      if (reason == Reason::kNone) wire.session = frame.session;
      return reason;
    }
    if (frame.session != wire.session) return Reason::kUnknownSession;
    if (frame.kind == FrameKind::kMessage) {
      if (wire.link != nullptr) wire.link->sent();
      receiver_.on_message(wire.session, frame.header);
      return Reason::kNone;
    }
    if (frame.kind != FrameKind::kPlace) return Reason::kNotAFrame;
    return move(event);
  }

  /// Moves one piece, and the rest later.
  Reason move(Event& event) {
    if (event.to == nullptr) {
      const auto [reason, data] = grants_.begin(event.frame);
      if (reason != Reason::kNone) return reason;
      if (event.bytes != event.frame.bytes) return Reason::kWrongLength;
      event.to = data;
    }
    const std::uint64_t piece = std::min(event.bytes, net_->options.piece_bytes);
    if (piece > 0) std::memcpy(event.to, event.data, piece);
    event.to += piece;
    event.data += piece;
    event.bytes -= piece;
    const std::shared_ptr<Wire> wire = event.wire;
    if (wire->link != nullptr) wire->link->moved();
    if (event.bytes > 0) {
      event.due = later();
      arrive(std::move(event));
      return Reason::kNone;
    }
    receiver_.on_placed(grants_.finish(event.frame));
    Frame ack;
    ack.kind = FrameKind::kAck;
    ack.number = event.frame.number;
    if (!wire->is_closed) wire->from->arrive({.due = later(), .wire = wire, .frame = ack});
    return Reason::kNone;
  }

  void refuse(const std::shared_ptr<Wire>& wire, Reason reason) {
    hang_up(wire, reason);
    if (wire->session != 0) grants_.dismiss(wire->session);
    receiver_.on_refused({wire->session, wire->from_address, reason});
  }

  void end_session(const Wire& wire) {
    if (wire.session == 0) return;
    grants_.dismiss(wire.session);
    receiver_.on_closed(wire.session, "link from " + wire.from_address +
                                          " over a fake: the peer closed the connection");
  }

  std::shared_ptr<FakeNetwork::State> net_;
  std::string address_;
  os::Fd event_;
  bool is_dead_ = false;
  std::deque<Event> events_;
  std::vector<std::shared_ptr<Wire>> incoming_;
  std::vector<std::shared_ptr<Wire>> outgoing_;
};

namespace {

void FakeLink::put(const Frame& frame, const std::byte* data, std::uint64_t bytes) {
  if (wire->is_closed) return;  // The news is on its way.
  wire->to->arrive(
      {.due = wire->to->later(), .wire = wire, .frame = frame, .data = data, .bytes = bytes});
}

void FakeLink::drop(bool aborts) {
  if (!wire) return;  // To connect threw.
  if (aborts) FakeTransport::leave(wire);
  wire->is_closed = true;
  wire->link = nullptr;
}

/// A host of its own, without a receiver for what comes back.
class RawPeer final : public FakeNetwork::Raw, private Receiver {
 public:
  RawPeer(std::shared_ptr<FakeNetwork::State> net, const std::string& address)
      : host_(std::move(net), *this, 0), wire_(host_.wire_to(address, nullptr)) {}

  void send(const Frame& frame, const std::byte* data, std::uint64_t bytes) override {
    if (wire_->is_closed) return;
    Event event{.due = host_.later(),
                .wire = wire_,
                .frame = frame,
                .bytes = bytes,
                .copy = std::vector<std::byte>(data, data + bytes)};
    // Frames that follow a hello come after it.
    if (frame.kind == FrameKind::kHello) event.due = 0;
    event.data = event.copy.data();
    wire_->to->arrive(std::move(event));
  }

 private:
  void on_placed(const Placement&) override {}
  void on_message(std::uint64_t, const Header&) override {}
  void on_refused(const Refusal&) override {}
  void on_acknowledged(std::uint64_t, std::uint64_t) override {}
  void on_closed(std::uint64_t, const std::string&) override {}

  FakeTransport host_;
  std::shared_ptr<Wire> wire_;
};

}  // namespace

FakeTransport* FakeNetwork::State::find(const std::string& address) const {
  for (FakeTransport* const host : hosts) {
    if (host->address() == address) return host;
  }
  return nullptr;
}

FakeNetwork::FakeNetwork(const Options& options) : state_(std::make_shared<State>(options)) {}
FakeNetwork::~FakeNetwork() = default;

std::unique_ptr<Transport> FakeNetwork::open(Receiver& receiver, std::uint32_t max_grants) {
  return std::make_unique<FakeTransport>(state_, receiver, max_grants);
}

void FakeNetwork::kill(const std::string& address) {
  if (FakeTransport* const host = state_->find(address)) host->die();
}

void FakeNetwork::cut(const std::string& one, const std::string& other) {
  state_->cuts.insert(std::minmax(one, other));
}

void FakeNetwork::mend(const std::string& one, const std::string& other) {
  state_->cuts.erase(std::minmax(one, other));
}

std::unique_ptr<FakeNetwork::Raw> FakeNetwork::connect_raw(const std::string& address) {
  return std::make_unique<RawPeer>(state_, address);
}

}  // namespace flowtrain::transport
