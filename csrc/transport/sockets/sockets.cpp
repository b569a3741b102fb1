#include "transport/sockets/sockets.hpp"

#include <sys/epoll.h>
#include <sys/socket.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <utility>
#include <vector>

#include "os/ticks.hpp"
#include "transport/links.hpp"
#include "transport/sockets/endpoint.hpp"
#include "transport/sockets/incoming.hpp"
#include "transport/sockets/outgoing.hpp"

namespace flowtrain::transport {
namespace {

/// Time for a peer to open a session, or to close after it was refused.
constexpr std::int64_t kPatienceNs = 2'000'000'000;
constexpr std::ptrdiff_t kMaxStrangers = 64;

class Sockets final : public Transport {
 public:
  Sockets(const std::string& host, Receiver& receiver, std::uint32_t max_grants)
      : Transport(receiver, max_grants),
        epoll_(::epoll_create1(EPOLL_CLOEXEC)),
        listening_(listen_on(host)),
        address_(local_address(listening_.get())) {
    if (!epoll_) throw_errno("transport sockets: cannot make an epoll set");
    watch(listening_);
    watch(ticks_.fd());
  }

  void dismiss(std::uint64_t session) override {
    for (const auto& connection : incoming_) {
      if (connection->session() == session) connection->close(true);
    }
    grants_.dismiss(session);
  }

  std::string address() const override { return address_; }

  std::shared_ptr<Link> connect(const std::string& address, const Session& session) override {
    auto link = std::make_shared<Outgoing>(epoll_.get(), address, session, receiver_);
    outgoing_.add(link);
    ticks_.run(true);
    return link;
  }

  int progress_fd() const override { return epoll_.get(); }

  bool progress() override {
    std::array<epoll_event, 64> ready;
    const int count = ::epoll_wait(epoll_.get(), ready.data(), static_cast<int>(ready.size()), 0);
    for (int i = 0; i < count; ++i) {
      const epoll_event& event = ready[static_cast<std::size_t>(i)];
      if (event.data.ptr == &listening_) {
        accept();
      } else if (event.data.ptr == &ticks_.fd()) {
        ticks_.clear();
        listen(true);
      } else if (auto* const connection = static_cast<Connection*>(event.data.ptr);
                 connection->is_open()) {  // No earlier event of this call has closed it.
        connection->on_ready(event.events);
      }
    }
    sweep();
    return count > 0;
  }

  std::string explain() const override {
    std::string found = "sockets (TCP) at " + address_;
    if (!listens_) found += "\n  no descriptor is left for new links; raise the limit (ulimit -n)";
    found += outgoing_.explain();
    for (const auto& connection : incoming_) {
      if (connection->is_open() && connection->session() != 0) {
        found += "\n  from " + connection->peer();
      }
    }
    return found;
  }

 private:
  void watch(const os::Fd& fd) {
    epoll_event event{EPOLLIN, {.ptr = const_cast<os::Fd*>(&fd)}};
    if (::epoll_ctl(epoll_.get(), EPOLL_CTL_ADD, fd.get(), &event) != 0) {
      throw_errno("transport sockets: cannot wait for connections");
    }
  }

  /// Whether connections that wait to be accepted are events.
  void listen(bool wanted) {
    if (std::exchange(listens_, wanted) == wanted) return;
    epoll_event event{wanted ? EPOLLIN : 0U, {.ptr = &listening_}};
    ::epoll_ctl(epoll_.get(), EPOLL_CTL_MOD, listening_.get(), &event);
  }

  void accept() {
    os::Fd socket(::accept4(listening_.get(), nullptr, nullptr, SOCK_NONBLOCK | SOCK_CLOEXEC));
    // Without descriptors or memory for it, the connection would be an event all the time.
    const bool lacks =
        !socket && (errno == EMFILE || errno == ENFILE || errno == ENOBUFS || errno == ENOMEM);
    if (lacks) listen(false);
    if (!socket) return;
    incoming_.push_back(
        std::make_unique<Incoming>(epoll_.get(), std::move(socket), grants_, receiver_));
    limit_strangers();
  }

  /// Of too many strangers the oldest is dropped, so that they cannot use up all descriptors: a
  /// peer opens its session at once, and so gets in whatever comes beside it.
  void limit_strangers() {
    const auto is_stranger = [](const auto& each) {
      return each->is_stranger() && each->is_open();
    };
    if (std::ranges::count_if(incoming_, is_stranger) <= kMaxStrangers) return;
    Incoming& oldest = **std::ranges::find_if(incoming_, is_stranger);
    oldest.on_ready(EPOLLIN);  // Its hello may have come while the receiver was busy.
    if (oldest.is_stranger()) oldest.close();
  }

  /// Drops what is closed, closes what is overdue, and sets the timer for the rest.
  void sweep() {
    bool waits = outgoing_.sweep(connect_limit_ns_) || !listens_;
    for (const auto& connection : incoming_) {
      // Its hello may have come while the receiver was busy.
      if (connection->is_overdue(kPatienceNs)) connection->on_ready(EPOLLIN);
      if (connection->is_overdue(kPatienceNs)) connection->close();
      waits = waits || connection->is_overdue(-1);
    }
    std::erase_if(incoming_, [](const auto& each) { return !each->is_open(); });
    ticks_.run(waits);
  }

  os::Fd epoll_;
  os::Ticks ticks_;
  os::Fd listening_;
  std::string address_;
  bool listens_ = true;  // If not, again at the next tick.
  std::vector<std::unique_ptr<Incoming>> incoming_;
  Links<Outgoing> outgoing_;
};

}  // namespace

std::unique_ptr<Transport> open_sockets(const std::string& host, Receiver& receiver,
                                        std::uint32_t max_grants) {
  return std::make_unique<Sockets>(host, receiver, max_grants);
}

}  // namespace flowtrain::transport
