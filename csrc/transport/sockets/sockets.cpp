#include "transport/sockets/sockets.hpp"

#include <sys/epoll.h>
#include <sys/socket.h>
#include <sys/timerfd.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <utility>
#include <vector>

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
        timer_(::timerfd_create(CLOCK_MONOTONIC, TFD_NONBLOCK | TFD_CLOEXEC)),
        listening_(listen_on(host)),
        address_(local_address(listening_.get())) {
    if (!epoll_ || !timer_) throw_errno("transport sockets: cannot make an epoll set");
    watch(listening_);
    watch(timer_);
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
    outgoing_.push_back(link);
    run_timer(true);
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
      } else if (event.data.ptr == &timer_) {
        std::uint64_t expirations;
        static_cast<void>(::read(timer_.get(), &expirations, sizeof(expirations)));
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
    for (const auto& link : outgoing_) {
      if (!link->error().empty()) continue;
      found += "\n  to " + link->peer() + ": " + std::to_string(link->pending()) + " pending";
      const std::int64_t stalled_ms = link->stalled_ns() / 1'000'000;
      if (stalled_ms >= 1000) {
        found += ", and the peer has taken nothing for " + std::to_string(stalled_ms / 1000) + " s";
      }
    }
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
    bool waits = !listens_;
    for (const auto& connection : incoming_) {
      // Its hello may have come while the receiver was busy.
      if (connection->is_overdue(kPatienceNs)) connection->on_ready(EPOLLIN);
      if (connection->is_overdue(kPatienceNs)) connection->close();
      waits = waits || connection->is_overdue(-1);
    }
    for (std::size_t i = 0; i < outgoing_.size(); ++i) {
      if (outgoing_[i].use_count() == 1) outgoing_[i]->abort();  // Its last user has dropped it.
      outgoing_[i]->expire(connect_limit_ns_);
      waits = waits || outgoing_[i]->is_connecting();
    }
    std::erase_if(incoming_, [](const auto& each) { return !each->is_open(); });
    std::erase_if(outgoing_, [](const auto& each) { return !each->is_open(); });
    run_timer(waits);
  }

  /// Lets `progress` be called each second, or not.
  void run_timer(bool wanted) {
    if (std::exchange(timer_runs_, wanted) == wanted) return;
    const timespec every{wanted ? 1 : 0, 0};
    const itimerspec set{every, every};
    ::timerfd_settime(timer_.get(), 0, &set, nullptr);
  }

  os::Fd epoll_;
  os::Fd timer_;
  os::Fd listening_;
  std::string address_;
  bool listens_ = true;  // If not, again at the timer.
  bool timer_runs_ = false;
  std::vector<std::unique_ptr<Incoming>> incoming_;
  std::vector<std::shared_ptr<Outgoing>> outgoing_;
};

}  // namespace

std::unique_ptr<Transport> open_sockets(const std::string& host, Receiver& receiver,
                                        std::uint32_t max_grants) {
  return std::make_unique<Sockets>(host, receiver, max_grants);
}

}  // namespace flowtrain::transport
