// TCP: what every transport must do, and processes that are killed and stopped.

#include <signal.h>
#include <sys/socket.h>
#include <unistd.h>

#include "os/child.hpp"
#include "transport/conformance.hpp"
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

/// A process that receives kPlacements placements and then ends.
class Process {
 public:
  static constexpr std::uint64_t kBytes = 8 << 20;
  static constexpr std::uint32_t kPlacements = 24;

  Process() : child_([this] { receive(); }) {
    pipe_.in.reset();  // So that the read fails if the child does.
    CHECK(::read(pipe_.out.get(), address_, sizeof(address_)) == sizeof(address_));
  }
  std::string address() const { return address_; }
  os::Child<std::function<void()>>& child() { return child_; }
  /// Grants of the process, which follow from their order.
  static Grant grant(std::uint32_t i) { return {7, i, 1, 0, 0, kBytes}; }

 private:
  void receive() {
    Host host(kSubject, kBytes);
    host.transport->admit(session_of(7));
    for (std::uint32_t i = 0; i < kPlacements; ++i) {
      const Grant made = host.grant(7, 0, kBytes);
      CHECK(made.slot == grant(i).slot && made.generation == grant(i).generation);
    }
    std::strcpy(address_, host.transport->address().c_str());
    CHECK(::write(pipe_.in.get(), address_, sizeof(address_)) == sizeof(address_));
    const Deadline deadline = Deadline::in(60);
    while (host.closed.empty() && !deadline.passed()) {
      host.transport->wait(deadline.within(1));
    }
    CHECK(host.placed.size() == kPlacements);
  }

  struct Pipe {
    Pipe() {
      int ends[2];
      CHECK(::pipe(ends) == 0);
      out.reset(ends[0]);
      in.reset(ends[1]);
    }
    os::Fd out, in;
  } pipe_;
  char address_[64] = {};
  os::Child<std::function<void()>> child_;
};

/// A host with a link to a process, and placements under way.
struct Sending {
  Sending() : payload(pattern(1, Process::kBytes)) {
    link = host.transport->connect(process.address(), session_of(7));
    for (std::uint32_t i = 0; i < Process::kPlacements; ++i) {
      CHECK(link->place(Process::grant(i), {}, payload.data(), payload.size()));
    }
    run({&host}, [&] { return !host.acknowledged.empty(); });
  }
  Process process;
  Host host{kSubject};
  Bytes payload;
  std::shared_ptr<Link> link;
};

void a_killed_process_is_an_error() {
  Sending sending;
  sending.process.child().send(SIGKILL);
  run({&sending.host}, [&] { return !sending.link->error().empty(); });
  CHECK(sending.host.acknowledged.size() < Process::kPlacements);
  CHECK(sending.link->error().find(sending.process.address()) != std::string::npos);
}

void a_stopped_process_is_a_stall_that_goes_on() {
  Sending sending;
  CHECK(sending.process.child().stop());
  run({&sending.host}, [&] { return sending.link->stalled_ns() > 1'500'000'000; });
  CHECK(sending.link->error().empty());
  CHECK(sending.host.transport->explain().find("has taken nothing for 1 s") != std::string::npos);
  sending.process.child().send(SIGCONT);
  CHECK(sending.host.transport->flush(*sending.link, Deadline::in(30)));
  CHECK(sending.host.acknowledged.size() == Process::kPlacements);
  sending.link->abort();
  CHECK(sending.process.child().wait() == os::Child<std::function<void()>>::End::kDone);
}

/// A dropped link ends as by abort.
void a_link_that_nobody_holds_ends() {
  Pair pair(kSubject);
  CHECK(pair.link->send({}));
  run({&pair.a, &pair.b}, [&] { return pair.b.messages.size() == 1; });
  pair.link.reset();
  run({&pair.a, &pair.b}, [&] { return !pair.b.closed.empty(); });
}

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
  settle({&attacked.host});
  // More than 64 at a time are not taken at all.
  CHECK(std::ranges::count_if(silent, [](const auto& each) { return each->is_closed(); }) >= 36);
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

int main() {
  check(kSubject);
  check_refusals(kSubject);
  if (::access("/proc/net/if_inet6", F_OK) == 0) messages_arrive(subject_on("::1"));
  a_killed_process_is_an_error();
  a_stopped_process_is_a_stall_that_goes_on();
  a_link_that_nobody_holds_ends();
  a_port_without_a_listener_is_an_error_of_the_link();
  peers_that_linger_are_closed();
  frames_may_arrive_byte_by_byte();
}
