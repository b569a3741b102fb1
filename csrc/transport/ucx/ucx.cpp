#include "transport/ucx/ucx.hpp"

#include <sys/epoll.h>

#include <algorithm>
#include <utility>
#include <vector>

#include "base/error.hpp"
#include "os/fd.hpp"
#include "os/ticks.hpp"
#include "transport/links.hpp"
#include "transport/ucx/engine.hpp"
#include "transport/ucx/incoming.hpp"
#include "transport/ucx/outgoing.hpp"

namespace flowtrain::transport {
namespace {

using ucx::Incoming;
using ucx::Outgoing;

/// Time for a peer to close after it was refused.
constexpr std::int64_t kPatienceNs = 2'000'000'000;

constexpr const char* kNoEvents = "transport UCX: cannot wait for events";

int checked(int result) {
  if (result < 0) throw_errno(kNoEvents);
  return result;
}

class Ucx final : public Transport {
 public:
  Ucx(const std::string& host, Receiver& receiver, const UcxOptions& options,
      std::uint32_t max_grants)
      : Transport(receiver, max_grants),
        epoll_(checked(::epoll_create1(EPOLL_CLOEXEC))),
        engine_(ucx::open_library(options.search), host, options, grants_) {
    engine_.worker()->watch_in(epoll_.get(), kNoEvents);
    epoll_event event{EPOLLIN, {.fd = ticks_.fd().get()}};
    checked(::epoll_ctl(epoll_.get(), EPOLL_CTL_ADD, ticks_.fd().get(), &event));
  }
  ~Ucx() override {
    for (const auto& link : outgoing_) link->abort();
    for (const auto& connection : incoming_) connection->close();
    engine_.events.clear();
  }

  std::uint32_t add_region(std::byte* data, std::uint64_t bytes) override {
    engine_.add_region(data, bytes);
    return Transport::add_region(data, bytes);
  }
  std::optional<std::uint32_t> add_device_region(std::uint64_t address,
                                                 std::uint64_t bytes) override {
    if (!engine_.reads_devices()) return std::nullopt;
    auto* const data = reinterpret_cast<std::byte*>(address);
    engine_.add_region(data, bytes, ucx::kCudaMemory);
    return Transport::add_region(data, bytes);
  }
  void remove_region(std::uint32_t region) override {
    const std::byte* const data = grants_.data_of(region);
    Transport::remove_region(region);
    engine_.remove_region(data);
  }
  std::uint64_t registrations() const override { return engine_.num_regions(); }

  void dismiss(std::uint64_t session) override {
    for (const auto& connection : incoming_) {
      if (connection->session() == session) connection->dismiss();
    }
    grants_.dismiss(session);
  }

  std::string address() const override {
    return ucx::peer_text(engine_.host(), engine_.worker()->address());
  }

  std::shared_ptr<Link> connect(const std::string& address, const Session& session) override {
    auto link = std::make_shared<Outgoing>(engine_, ucx::parse_peer(address), session, receiver_);
    link->worker()->watch_in(epoll_.get(), kNoEvents);
    link->greet(session.ticket);
    outgoing_.add(link);
    ticks_.run(true);
    return link;
  }

  int progress_fd() const override { return epoll_.get(); }
  bool arm() override {
    if (!engine_.events.empty() || !engine_.worker()->arm()) return false;
    return std::ranges::all_of(
        outgoing_, [](const auto& link) { return !link->is_open() || link->worker()->arm(); });
  }

  bool progress() override {
    bool did = engine_.worker()->progress();
    for (const auto& link : outgoing_) {
      if (link->is_open()) did |= link->worker()->progress();
    }
    look_at_door();
    while (!engine_.events.empty()) {
      const ucx::Event event = std::move(engine_.events.front());
      engine_.events.pop_front();
      if (event.at->is_open()) event.at->handle(event);
      did = true;
    }
    for (std::size_t i = 0; i < incoming_.size(); ++i) incoming_[i]->acknowledge();
    sweep();
    return did;
  }

  std::string explain() const override {
    const ucx::Library& library = engine_.library();
    std::string found = "UCX " + library.version + " (" + library.found + ", " + library.path +
                        ") at " + engine_.host() + " through " + engine_.devices() + ", " +
                        std::to_string(engine_.num_regions()) + " regions registered" +
                        (engine_.reads_devices() ? ", reads memory of devices" : "");
    found += outgoing_.explain();
    for (const auto& connection : incoming_) {
      if (connection->is_open()) found += "\n  from " + connection->peer();
    }
    return found;
  }

 private:
  /// Answers the peers that have opened a session. The receiver is told afterwards, since it may
  /// end sessions.
  void look_at_door() {
    std::vector<std::pair<std::uint64_t, std::string>> failed;
    for (const auto& guest : std::exchange(engine_.door().guests, {})) {
      try {
        incoming_.push_back(std::make_shared<Incoming>(engine_, guest, grants_, receiver_));
        incoming_.back()->welcome();
      } catch (const std::exception& error) {
        failed.emplace_back(guest.session, error.what());
      }
    }
    for (const auto& [session, why] : failed) {
      grants_.dismiss(session);
      receiver_.on_closed(session, why);
    }
    for (const Reason reason : std::exchange(engine_.door().refused, {})) {
      receiver_.on_refused({0, "an unknown address", reason});
    }
  }

  /// Drops what is closed, closes what is overdue, and sets the timer for the rest.
  void sweep() {
    bool waits = outgoing_.sweep(connect_limit_ns_);
    for (std::size_t i = 0; i < incoming_.size(); ++i) {
      incoming_[i]->expire(kPatienceNs);
      waits = waits || incoming_[i]->is_refused();
    }
    std::erase_if(incoming_, [](const auto& each) { return !each->is_open(); });
    if (waits) ticks_.clear();
    ticks_.run(waits);
  }

  os::Fd epoll_;
  os::Ticks ticks_;
  ucx::Engine engine_;
  std::vector<std::shared_ptr<Incoming>> incoming_;
  Links<Outgoing> outgoing_;
};

}  // namespace

std::unique_ptr<Transport> open_ucx(const std::string& host, Receiver& receiver,
                                    const UcxOptions& options, std::uint32_t max_grants) {
  return std::make_unique<Ucx>(host, receiver, options, max_grants);
}

}  // namespace flowtrain::transport
