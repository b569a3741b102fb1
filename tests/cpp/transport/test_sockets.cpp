// TCP: what every transport must do, and processes that are killed and stopped.

#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>

#include <chrono>
#include <thread>

#include "transport/conformance.hpp"
#include "transport/deaths.hpp"
#include "transport/refusals.hpp"
#include "transport/sockets/endpoint.hpp"
#include "transport/sockets/sockets.hpp"

using namespace flowtrain;
using namespace flowtrain::transport;
using namespace flowtrain::transport::conformance;

namespace {

class RawPeer final : public Raw {
 public:
  explicit RawPeer(const std::string& address) : socket_(connect_to(address)) {}
  void send(const Frame& frame, const Bytes& payload) override {
    put(&frame, sizeof(frame));
    put(payload.data(), payload.size());
  }
  /// Fits into the buffers of the kernel.
  void put(const void* data, std::size_t bytes) {
    const auto* from = static_cast<const char*>(data);
    for (const Deadline deadline = Deadline::in(30); bytes > 0;) {
      CHECK(!deadline.passed());
      const ssize_t sent = ::send(socket_.get(), from, bytes, MSG_NOSIGNAL);
      if (sent < 0 && (errno == EAGAIN || errno == ENOTCONN)) continue;
      if (sent < 0) return;  // The host has closed it.
      from += sent;
      bytes -= static_cast<std::size_t>(sent);
    }
  }
  bool is_closed() const {
    char byte;
    const ssize_t got = ::recv(socket_.get(), &byte, 1, MSG_DONTWAIT);
    return got == 0 || (got < 0 && errno != EAGAIN);
  }

 private:
  os::Fd socket_;
};

Subject subject_on(const std::string& host) {
  return {[host](Receiver& receiver) { return open_sockets(host, receiver); },
          [](const std::string& address) { return std::make_unique<RawPeer>(address); }};
}

const Subject kSubject = subject_on("127.0.0.1");

void a_port_without_a_listener_is_an_error_of_the_link() {
  Host host(kSubject);
  std::string gone;
  {
    Host other(kSubject);
    gone = other.transport->address();
  }
  const auto link = host.transport->connect(gone, session_of(7));
  run({&host}, [&] { return !link->error().empty(); });
  CHECK(link->error().find("refused") != std::string::npos);
}

/// As behind a firewall: what goes to a socket whose queue of connections is full is dropped.
void a_connection_that_never_stands_is_an_error_of_the_link() {
  const os::Fd full = listen_on("127.0.0.1");
  CHECK(::listen(full.get(), 0) == 0);
  const std::string address = local_address(full.get());
  const os::Fd first = connect_to(address), second = connect_to(address);
  Host host(kSubject);
  host.transport->limit_connect(500'000'000);
  const auto link = host.transport->connect(address, session_of(7));
  const Deadline deadline = Deadline::in(30);
  while (link->error().empty() && !deadline.passed()) host.transport->wait(deadline);
  CHECK(names(link->error(), address) && link->error().find("within 0.5 s") != std::string::npos);
}

/// A peer that is told why it was refused and goes on, or never says who it is, is hung up on.
void peers_that_linger_are_closed() {
  Attacked attacked(kSubject);
  auto* const refused = static_cast<RawPeer*>(attacked.raw.get());
  refused->send(attacked.hello(), {});
  Frame frame = attacked.place();
  frame.slot += 1;
  refused->send(frame, {});
  std::vector<std::unique_ptr<RawPeer>> silent;
  for (int i = 0; i < 100; ++i) {
    silent.push_back(std::make_unique<RawPeer>(attacked.host.transport->address()));
    attacked.host.transport->progress();
  }
  // Of more than 64 at a time the oldest are dropped, and a peer gets in beside them.
  run({&attacked.host}, [&] {
    return std::ranges::count_if(silent, [](const auto& each) { return each->is_closed(); }) >= 36;
  });
  Host peer(kSubject);
  const auto link = peer.transport->connect(attacked.host.transport->address(), session_of(9));
  CHECK(link->send({}));
  run({&peer, &attacked.host}, [&] { return attacked.host.messages.size() == 1; });
  CHECK(!silent.back()->is_closed());
  const Deadline deadline = Deadline::in(30);
  while (!std::ranges::all_of(silent, [](const auto& each) { return each->is_closed(); })) {
    CHECK(!deadline.passed());
    attacked.host.transport->wait(Deadline::in(1));
  }
  const Bytes more(1);
  const Deadline closed = Deadline::in(30);
  while (!closed.passed() && !refused->is_closed()) {
    refused->put(more.data(), 1);
    attacked.host.transport->progress();
  }
  CHECK(!closed.passed());
}

/// A host that was busy for longer than a stranger has time looks first at what has come.
void a_peer_whose_hello_has_come_is_not_overdue() {
  Attacked attacked(kSubject);
  settle({&attacked.host});
  attacked.host.when_placed = [&](const Placement& placed) {
    if (placed.grant.session == 7) return;
    attacked.raw->send(attacked.hello(), {});
    std::this_thread::sleep_for(std::chrono::milliseconds(2100));
  };
  Host other(kSubject);
  const auto link = other.transport->connect(attacked.host.transport->address(), session_of(9));
  const Bytes payload = pattern(1, 8);
  CHECK(link->place(attacked.foreign, {}, payload.data(), payload.size()));
  run({&other, &attacked.host}, [&] { return attacked.host.placed.size() == 1; });
  attacked.raw->send(attacked.place(), pattern(3, kGranted));
  run({&attacked.host}, [&] { return attacked.host.placed.size() == 2; });
}

/// A connection for which there is no descriptor waits, and so does the thread.
void a_lack_of_descriptors_delays_a_link() {
  Pair pair(kSubject);
  const os::Fd last(::dup(0));
  rlimit before{};
  CHECK(::getrlimit(RLIMIT_NOFILE, &before) == 0);
  const rlimit full{static_cast<rlim_t>(last.get() + 1), before.rlim_max};
  CHECK(::setrlimit(RLIMIT_NOFILE, &full) == 0);
  pair.b.transport->wait(Deadline::in(30));
  run({}, [&] { return !pair.b.transport->wait(Deadline::in(0.01)); });
  CHECK(::setrlimit(RLIMIT_NOFILE, &before) == 0);
  CHECK(pair.link->send({}));
  const Deadline deadline = Deadline::in(30);
  while (pair.b.messages.empty()) {
    CHECK(!deadline.passed());
    pair.a.transport->progress();
    pair.b.transport->wait(Deadline::in(0.05));
  }
}

/// A forked child keeps the descriptors of its parent until it executes a program.
void a_connection_that_a_child_inherited_ends() {
  Pair pair(kSubject);
  CHECK(pair.link->send({}));
  run({&pair.a, &pair.b}, [&] { return pair.b.messages.size() == 1; });
  os::Child<std::function<void()>> child([] { ::pause(); });
  pair.b.transport->dismiss(7);
  pair.b.transport->progress();
  CHECK(pair.link->send({}));
  settle({&pair.a});
  CHECK(!pair.b.transport->wait(Deadline::in(0.01)));
  child.send(SIGKILL);
  run({&pair.a}, [&] { return !pair.link->error().empty(); });
}

/// Frames that arrive in pieces of any size.
void frames_may_arrive_byte_by_byte() {
  Attacked attacked(kSubject);
  auto* const raw = static_cast<RawPeer*>(attacked.raw.get());
  const Frame frames[] = {attacked.hello(), attacked.place()};
  const Bytes payload = pattern(6, kGranted);
  Bytes all(sizeof(frames) + payload.size());
  std::memcpy(all.data(), frames, sizeof(frames));
  std::memcpy(all.data() + sizeof(frames), payload.data(), payload.size());
  for (const std::byte& each : all) {
    raw->put(&each, 1);
    attacked.host.transport->progress();
  }
  run({&attacked.host}, [&] { return attacked.host.placed.size() == 1; });
  CHECK(holds(attacked.host, kGranted, payload));
}

}  // namespace

int main(int count, char** arguments) {
  if (count > 1) return receive(kSubject, arguments[1]);
  check(kSubject);
  check_refusals(kSubject);
  check_deaths(kSubject);
  if (::access("/proc/net/if_inet6", F_OK) == 0) messages_arrive(subject_on("::1"));
  a_port_without_a_listener_is_an_error_of_the_link();
  a_connection_that_never_stands_is_an_error_of_the_link();
  peers_that_linger_are_closed();
  a_peer_whose_hello_has_come_is_not_overdue();
  frames_may_arrive_byte_by_byte();
  a_connection_that_a_child_inherited_ends();
  a_lack_of_descriptors_delays_a_link();
}
