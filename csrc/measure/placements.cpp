#include "measure/placements.hpp"

#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstring>
#include <functional>
#include <memory>
#include <utility>

#include "base/clock.hpp"
#include "base/deadline.hpp"
#include "base/error.hpp"
#include "os/child.hpp"
#include "os/cores.hpp"
#include "os/fd.hpp"
#include "os/shared_zeros.hpp"
#include "transport/address.hpp"
#include "transport/sockets/sockets.hpp"
#include "transport/ucx/ucx.hpp"

namespace flowtrain::measure {
namespace {

using transport::Grant;
using transport::Header;
using transport::Placement;
using transport::Receiver;
using transport::Transport;

constexpr double kTimeoutS = 60.0;
constexpr const char* kHost = "127.0.0.1";
constexpr transport::Session kSession{1, {}};

/// Memory that both processes map: the facts of the receiver, for the sender.
struct Shared {
  std::atomic<bool> is_ready;
  char address[4096];
  std::uint64_t registrations;
};

transport::UcxOptions options_of(const PlacementLoad& load) {
  return {{load.library, load.others}, load.settings};
}

std::unique_ptr<Transport> open(const PlacementLoad& load, Receiver& receiver) {
  if (load.path == "tcp") return transport::open_sockets(kHost, receiver);
  return transport::open_ucx(kHost, receiver, options_of(load));
}

/// Times of the payloads, after a warm-up.
class Clock {
 public:
  explicit Clock(const PlacementLoad& load) : load_(load) {}

  /// Whether another payload shall be sent.
  bool goes_on() const { return times_.size() < kMinimum || watch_.elapsed_s() < load_.seconds; }
  /// A payload has arrived `took_ns` after it was sent.
  void arrived(std::int64_t took_ns) {
    ++arrived_;
    last_ns_ = now_ns();
    if (begun_ns_ == 0 && watch_.elapsed_s() > load_.seconds / 5 && arrived_ > load_.window) {
      begun_ns_ = last_ns_;
    } else if (begun_ns_ != 0) {
      times_.push_back(took_ns);
    }
  }
  PlacementFigure figure() {
    PlacementFigure found{};
    const auto middle = times_.begin() + static_cast<std::ptrdiff_t>(times_.size() / 2);
    std::nth_element(times_.begin(), middle, times_.end());
    found.round_trip_ns = static_cast<double>(*middle);
    found.bytes_per_s = static_cast<double>(load_.bytes) * static_cast<double>(times_.size()) *
                        1e9 / static_cast<double>(last_ns_ - begun_ns_);
    return found;
  }

 private:
  static constexpr std::size_t kMinimum = 4;
  const PlacementLoad& load_;
  Stopwatch watch_;
  std::uint64_t arrived_ = 0;
  std::int64_t begun_ns_ = 0;
  std::int64_t last_ns_ = 0;
  std::vector<std::int64_t> times_;
};

/// Grants the memory of each payload anew when it has arrived. A slot is used again at once, so the
/// sender knows the grants: slot i has generation n in its nth use.
class Owner final : public Receiver {
 public:
  Owner(const PlacementLoad& load, Shared& shared)
      : load_(load), memory_(load.bytes * load.window), transport_(open(load, *this)) {
    std::memset(memory_.data(), 1, memory_.size());
    region_ = transport_->add_region(memory_.data(), memory_.size());
    transport_->admit(kSession);
    for (std::uint32_t i = 0; i < load.window; ++i) grant(i);
    transport_->address().copy(shared.address, sizeof(shared.address) - 1);
    shared.registrations = transport_->registrations();
    shared.is_ready.store(true, std::memory_order_release);  // sync: placements.ready
  }
  void run() {
    while (!is_over_) transport_->wait(Deadline::in(kTimeoutS));
  }

  void on_placed(const Placement& placement) override { grant(placement.grant.slot); }
  void on_message(std::uint64_t, const Header&) override {}
  void on_refused(const transport::Refusal& refusal) override {
    throw SystemCallError(std::string("placements: refused: ") + text(refusal.reason));
  }
  void on_acknowledged(std::uint64_t, std::uint64_t) override {}
  void on_closed(std::uint64_t, const std::string&) override { is_over_ = true; }

 private:
  void grant(std::uint32_t slot) {
    const auto made = transport_->grant(kSession.id, region_, load_.bytes * slot, load_.bytes);
    if (!made || made->slot != slot) throw SystemCallError("placements: another slot was granted");
  }

  const PlacementLoad& load_;
  std::vector<std::byte> memory_;
  std::unique_ptr<Transport> transport_;
  std::uint32_t region_ = 0;
  bool is_over_ = false;
};

class Sender final : public Receiver {
 public:
  Sender(const PlacementLoad& load, const Shared& shared)
      : load_(load),
        payload_(load.bytes, std::byte{7}),
        sent_ns_(load.window),
        transport_(open(load, *this)),
        clock_(load) {
    transport_->add_region(payload_.data(), payload_.size());
    link_ = transport_->connect(shared.address, kSession);
  }

  PlacementFigure run() {
    while (clock_.goes_on() || link_->pending() > 0) {
      while (clock_.goes_on() && link_->pending() < load_.window) place();
      transport_->wait(Deadline::in(kTimeoutS));
      if (!link_->error().empty()) throw SystemCallError("placements: " + link_->error());
    }
    return clock_.figure();
  }

  void on_placed(const Placement&) override {}
  void on_message(std::uint64_t, const Header&) override {}
  void on_refused(const transport::Refusal&) override {}
  void on_acknowledged(std::uint64_t, std::uint64_t number) override {
    clock_.arrived(now_ns() - sent_ns_[(number - 1) % load_.window]);
  }
  void on_closed(std::uint64_t, const std::string&) override {}

 private:
  void place() {
    const auto slot = static_cast<std::uint32_t>(placed_ % load_.window);
    const auto generation = static_cast<std::uint32_t>(placed_ / load_.window + 1);
    ++placed_;
    sent_ns_[slot] = now_ns();
    const Grant grant{kSession.id, slot, generation, 0, load_.bytes * slot, load_.bytes};
    link_->place(grant, {}, payload_.data(), payload_.size());
  }

  const PlacementLoad& load_;
  std::vector<std::byte> payload_;
  std::vector<std::int64_t> sent_ns_;
  std::unique_ptr<Transport> transport_;
  std::shared_ptr<transport::Link> link_;
  Clock clock_;
  std::uint64_t placed_ = 0;
};

/// A blocking TCP connection between this process and its child, by bare system calls.
class BarePair {
 public:
  BarePair(const PlacementLoad& load, int fd) : load_(load), socket_(fd) {
    const int on = 1;
    ::setsockopt(socket_.get(), IPPROTO_TCP, TCP_NODELAY, &on, sizeof(on));
  }

  /// Reads payloads until there are no more.
  void receive() {
    std::vector<std::byte> memory(load_.bytes * load_.window);
    std::memset(memory.data(), 1, memory.size());
    const std::byte answer{};
    for (std::uint64_t i = 0;; ++i) {
      std::byte* const to = memory.data() + load_.bytes * (i % load_.window);
      if (!read(to, load_.bytes)) return;
      write(&answer, 1);
    }
  }

  PlacementFigure send() {
    const std::vector<std::byte> payload(load_.bytes, std::byte{7});
    std::vector<std::int64_t> sent_ns(load_.window);
    Clock clock(load_);
    std::uint64_t sent = 0, answered = 0;
    while (clock.goes_on() || answered < sent) {
      if (clock.goes_on() && sent - answered < load_.window) {
        sent_ns[sent++ % load_.window] = now_ns();
        write(payload.data(), payload.size());
        // Answers that are there are taken, as they would be by a program that waits for both.
        while (sent - answered > 0 && sent - answered < load_.window && take(MSG_DONTWAIT)) {
          clock.arrived(now_ns() - sent_ns[answered++ % load_.window]);
        }
      } else if (take(0)) {
        clock.arrived(now_ns() - sent_ns[answered++ % load_.window]);
      } else {
        throw SystemCallError("placements: the receiver of the bare pair has ended");
      }
    }
    return clock.figure();
  }

 private:
  bool take(int flags) {
    std::byte answer;
    return ::recv(socket_.get(), &answer, 1, flags) == 1;
  }
  bool read(std::byte* to, std::uint64_t bytes) {
    while (bytes > 0) {
      const ssize_t got = ::recv(socket_.get(), to, bytes, MSG_WAITALL);
      if (got <= 0) return false;
      to += got;
      bytes -= static_cast<std::uint64_t>(got);
    }
    return true;
  }
  void write(const std::byte* from, std::uint64_t bytes) {
    while (bytes > 0) {
      const ssize_t sent = ::send(socket_.get(), from, bytes, MSG_NOSIGNAL);
      if (sent <= 0) throw_errno("placements: the bare pair cannot send");
      from += sent;
      bytes -= static_cast<std::uint64_t>(sent);
    }
  }

  const PlacementLoad& load_;
  os::Fd socket_;
};

template <class Function>
auto with_child(Function&& work) {
  return os::Child<std::function<void()>>([work = std::forward<Function>(work)] {
    os::pin_to_core(1);
    work();
  });
}

PlacementFigure measure_pair(const PlacementLoad& load) {
  const transport::Address any = transport::address_of(kHost, "0");
  const os::Fd listening(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  transport::Address at = any;
  if (!listening || ::bind(listening.get(), any.get(), any.size) != 0 ||
      ::listen(listening.get(), 1) != 0 ||
      ::getsockname(listening.get(), reinterpret_cast<sockaddr*>(&at.storage), &at.size) != 0) {
    throw_errno("placements: cannot listen");
  }
  auto child = with_child([&] {
    const int fd = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (::connect(fd, at.get(), at.size) != 0) throw_errno("placements: cannot connect");
    BarePair(load, fd).receive();
  });
  return BarePair(load, ::accept(listening.get(), nullptr, nullptr)).send();
}

}  // namespace

PlacementFigure measure_placements(const PlacementLoad& load) {
  if (load.path != "tcp" && load.path != "ucx" && load.path != "pair") {
    throw BadArgument("placements: path '" + load.path + "' is none of tcp, ucx, pair");
  }
  if (load.bytes < 1 || load.window < 1 || !(load.seconds > 0)) {
    throw BadArgument("placements: bytes and window must be at least 1, seconds more than 0");
  }
  os::pin_to_core(0);
  if (load.path == "pair") return measure_pair(load);
  const os::SharedZeros zeros(sizeof(Shared), "placements");
  Shared& shared = *reinterpret_cast<Shared*>(zeros.data());
  auto child = with_child([&] { Owner(load, shared).run(); });
  const Deadline deadline = Deadline::in(kTimeoutS);
  while (!shared.is_ready.load(std::memory_order_acquire)) {  // sync: placements.ready
    if (child.poll()) throw SystemCallError("placements: the receiver ended; see stderr");
    if (deadline.passed()) throw PoolTimeout("placements: the receiver did not start in time");
    ::usleep(1000);
  }
  PlacementFigure found = Sender(load, shared).run();
  found.registrations = shared.registrations;
  if (load.path == "ucx") {
    const transport::UcxOptions options = options_of(load);
    const transport::ucx::Library& library = transport::ucx::open_library(options.search);
    found.library = library.path;
    found.version = library.version;
    found.settings = transport::ucx_settings(kHost, options);
  }
  return found;
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
