#include "measure/placements.hpp"

#include <algorithm>
#include <cstring>
#include <memory>

#include "base/clock.hpp"
#include "base/deadline.hpp"
#include "base/error.hpp"
#include "measure/bare_pair.hpp"
#include "os/cores.hpp"
#include "transport/sockets/sockets.hpp"
#include "transport/ucx/ucx.hpp"

namespace flowtrain::measure {
namespace {

using transport::Grant;
using transport::Header;
using transport::Placement;
using transport::Receiver;
using transport::Transport;

constexpr std::uint64_t kSession = 1;

transport::Session session_of(const PlacementFlow& flow) {
  transport::Session session{kSession, {}};
  std::memcpy(session.ticket.data(), flow.ticket.data(), session.ticket.size());
  return session;
}

std::unique_ptr<Transport> open(const PlacementFlow& flow, Receiver& receiver) {
  if (flow.path == "tcp") return transport::open_sockets(flow.host, receiver);
  return transport::open_ucx(flow.host, receiver, {{flow.library, flow.others}, {}});
}

void check(const PlacementFlow& flow) {
  if (flow.path != "tcp" && flow.path != "ucx" && flow.path != "pair") {
    throw BadArgument("placements: path '" + flow.path + "' is none of tcp, ucx, pair");
  }
  if (flow.bytes < 1 || flow.window < 1) {
    throw BadArgument("placements: bytes and window must be at least 1");
  }
  if (flow.ticket.size() != sizeof(transport::Ticket)) {
    throw BadArgument("placements: a ticket of " + std::to_string(flow.ticket.size()) +
                      " characters, where " + std::to_string(sizeof(transport::Ticket)) +
                      " are needed");
  }
}

/// Grants the memory of each payload anew when it has arrived. A slot is used again at once, so the
/// sender knows the grants: slot i has generation n in its nth use.
class Owner final : public Receiver {
 public:
  explicit Owner(const PlacementFlow& flow)
      : flow_(flow), memory_(flow.bytes * flow.window), transport_(open(flow, *this)) {
    std::memset(memory_.data(), 1, memory_.size());
    region_ = transport_->add_region(memory_.data(), memory_.size());
    transport_->admit(session_of(flow));
    for (std::uint32_t i = 0; i < flow.window; ++i) grant(i);
  }
  void run(const TellReceiver& tell) {
    tell(transport_->address(), transport_->registrations());
    while (!is_over_) {
      // The transport does not tell of a sender that ends before it has opened the session.
      if (!transport_->wait(Deadline::in(kFlowTimeoutS)) && !has_begun_) {
        throw PoolTimeout("placements: no sender has come within 60 s");
      }
    }
  }

  void on_placed(const Placement& placement) override {
    has_begun_ = true;
    grant(placement.grant.slot);
  }
  void on_message(std::uint64_t, const Header&) override {}
  void on_refused(const transport::Refusal& refusal) override {
    if (refusal.session != kSession) return;  // A stranger.
    throw SystemCallError(std::string("placements: refused: ") + text(refusal.reason));
  }
  void on_acknowledged(std::uint64_t, std::uint64_t) override {}
  void on_closed(std::uint64_t, const std::string&) override { is_over_ = true; }

 private:
  void grant(std::uint32_t slot) {
    const auto made = transport_->grant(kSession, region_, flow_.bytes * slot, flow_.bytes);
    if (!made || made->slot != slot) throw SystemCallError("placements: another slot was granted");
  }

  const PlacementFlow& flow_;
  std::vector<std::byte> memory_;
  std::unique_ptr<Transport> transport_;
  std::uint32_t region_ = 0;
  bool has_begun_ = false;
  bool is_over_ = false;
};

class Sender final : public Receiver {
 public:
  Sender(const PlacementFlow& flow, const std::string& address, double seconds)
      : flow_(flow),
        payload_(flow.bytes, std::byte{7}),
        sent_ns_(flow.window),
        transport_(open(flow, *this)),
        arrivals_(flow.bytes, flow.window, seconds) {
    transport_->add_region(payload_.data(), payload_.size());
    link_ = transport_->connect(address, session_of(flow));
  }

  FlowFigure run() {
    for (;;) {
      while (link_->pending() < flow_.window && arrivals_.wants_more()) place();
      if (link_->pending() == 0) return arrivals_.figure();
      const bool is_alive = transport_->wait(Deadline::in(kFlowTimeoutS));
      if (!link_->error().empty()) throw SystemCallError("placements: " + link_->error());
      if (!is_alive) throw PoolTimeout("placements: the receiver has taken nothing for 60 s");
    }
  }

  void on_placed(const Placement&) override {}
  void on_message(std::uint64_t, const Header&) override {}
  void on_refused(const transport::Refusal&) override {}
  void on_acknowledged(std::uint64_t, std::uint64_t number) override {
    arrivals_.add(now_ns() - sent_ns_[(number - 1) % flow_.window]);
  }
  void on_closed(std::uint64_t, const std::string&) override {}

 private:
  void place() {
    const auto slot = static_cast<std::uint32_t>(placed_ % flow_.window);
    const auto generation = static_cast<std::uint32_t>(placed_ / flow_.window + 1);
    ++placed_;
    sent_ns_[slot] = now_ns();
    const Grant grant{kSession, slot, generation, 0, flow_.bytes * slot, flow_.bytes};
    link_->place(grant, {}, payload_.data(), payload_.size());
  }

  const PlacementFlow& flow_;
  std::vector<std::byte> payload_;
  std::vector<std::int64_t> sent_ns_;
  std::unique_ptr<Transport> transport_;
  std::shared_ptr<transport::Link> link_;
  Arrivals arrivals_;
  std::uint64_t placed_ = 0;
};

}  // namespace

void receive_placements(const PlacementFlow& flow, const TellReceiver& tell) {
  check(flow);
  os::pin_to_core(1);
  if (flow.path == "pair") return receive_bare(flow, tell);
  Owner(flow).run(tell);
}

FlowFigure send_placements(const PlacementFlow& flow, const std::string& address, double seconds) {
  check(flow);
  if (!(seconds > 0)) throw BadArgument("placements: seconds must be more than 0");
  os::pin_to_core(0);
  if (flow.path == "pair") return send_bare(flow, address, seconds);
  return Sender(flow, address, seconds).run();
}

UcxCopy find_ucx(const std::string& host, const std::string& library,
                 const std::vector<std::string>& others) {
  const transport::UcxOptions options{{library, others}, {}};
  const transport::ucx::Library& found = transport::ucx::open_library(options.search);
  return {found.path, found.version, transport::ucx_settings(host, options)};
}

double measure_memcpy(std::uint64_t bytes, double seconds) {
  if (bytes < 1) throw BadArgument("memcpy: bytes must be at least 1");
  os::pin_to_core(0);
  const std::vector<std::byte> from(bytes, std::byte{7});
  std::vector<std::byte> to(bytes, std::byte{1});
  // So many in a row that the clock does not count.
  const std::uint64_t batch = std::max<std::uint64_t>(1, (std::uint64_t{1} << 20) / bytes);
  const auto copy = [&] {
    for (std::uint64_t i = 0; i < batch; ++i) {
      std::memcpy(to.data(), from.data(), bytes);
      asm volatile("" : : "r"(to.data()) : "memory");
    }
  };
  copy();
  const Stopwatch watch;
  std::uint64_t batches = 0;
  do {
    copy();
    ++batches;
  } while (watch.elapsed_s() < seconds);
  return static_cast<double>(bytes * batch * batches) / watch.elapsed_s();
}

}  // namespace flowtrain::measure
