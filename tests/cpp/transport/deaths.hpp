#pragma once

#include <signal.h>
#include <unistd.h>

#include <charconv>

#include "os/child.hpp"
#include "os/fd.hpp"
#include "transport/host.hpp"

/// Processes that are killed and stopped, for transports between processes. Their receiver is this
/// program, executed anew with an argument for `receive`, since a transport may not survive a fork.
namespace flowtrain::transport::conformance {

/// A process that receives kPlacements placements and then ends.
class Process {
 public:
  static constexpr std::uint64_t kBytes = 8 << 20;
  static constexpr std::uint32_t kPlacements = 24;

  Process() : child_([this] { execute(); }) {
    pipe_.in.reset();  // So that the read fails if the child does.
    CHECK(::read(pipe_.out.get(), address_, sizeof(address_)) == sizeof(address_));
  }
  std::string address() const { return address_; }
  os::Child<std::function<void()>>& child() { return child_; }
  /// Grants of the process, which follow from their order.
  static Grant grant(std::uint32_t i) { return {7, i, 1, 0, 0, kBytes}; }

 private:
  friend int receive(const Subject& subject, const char* argument);

  void execute() const {
    const std::string fd = std::to_string(pipe_.in.get());
    ::execl("/proc/self/exe", "receiver", fd.c_str(), nullptr);
    throw_errno("cannot execute this program");
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
  char address_[4096] = {};
  os::Child<std::function<void()>> child_;
};

/// What the executed program does. Its argument is the descriptor that takes its address.
inline int receive(const Subject& subject, const char* argument) {
  int fd = -1;
  std::from_chars(argument, argument + std::strlen(argument), fd);
  Host host(subject, Process::kBytes);
  host.transport->admit(session_of(7));
  for (std::uint32_t i = 0; i < Process::kPlacements; ++i) {
    const Grant made = host.grant(7, 0, Process::kBytes);
    CHECK(made.slot == Process::grant(i).slot && made.generation == Process::grant(i).generation);
  }
  char address[sizeof(Process::address_)] = {};
  host.transport->address().copy(address, sizeof(address) - 1);
  CHECK(::write(fd, address, sizeof(address)) == sizeof(address));
  const Deadline deadline = Deadline::in(60);
  while (host.closed.empty() && !deadline.passed()) host.transport->wait(deadline.within(1));
  CHECK(host.placed.size() == Process::kPlacements && !host.closed.empty());
  return 0;
}

/// A host with a link to a process, and placements under way.
struct Sending {
  explicit Sending(const Subject& s) : host(s), payload(pattern(1, Process::kBytes)) {
    link = host.transport->connect(process.address(), session_of(7));
    place(0);
    run({&host}, [&] { return !host.acknowledged.empty(); });
    for (std::uint32_t i = 1; i < Process::kPlacements; ++i) place(i);
  }
  void place(std::uint32_t i) {
    CHECK(link->place(Process::grant(i), {}, payload.data(), payload.size()));
  }
  Process process;
  Host host;
  Bytes payload;
  std::shared_ptr<Link> link;
};

inline void a_killed_process_is_an_error(const Subject& s) {
  Sending sending(s);
  sending.process.child().send(SIGKILL);
  run({&sending.host}, [&] { return !sending.link->error().empty(); });
  CHECK(sending.host.acknowledged.size() < Process::kPlacements);
  CHECK(names(sending.link->error(), sending.process.address()));
}

inline void a_stopped_process_is_a_stall_that_goes_on(const Subject& s) {
  Sending sending(s);
  CHECK(sending.process.child().stop());
  run({&sending.host}, [&] { return sending.link->stalled_ns() > 1'500'000'000; });
  CHECK(sending.link->error().empty());
  CHECK(sending.host.transport->explain().find("has taken nothing for ") != std::string::npos);
  sending.process.child().send(SIGCONT);
  CHECK(flush(*sending.host.transport, *sending.link, Deadline::in(30)));
  CHECK(sending.host.acknowledged.size() == Process::kPlacements);
  sending.link->abort();
  CHECK(sending.process.child().wait() == os::Child<std::function<void()>>::End::kDone);
}

/// A dropped link ends as by abort.
inline void a_link_that_nobody_holds_ends(const Subject& s) {
  Pair pair(s);
  CHECK(pair.link->send({}));
  run({&pair.a, &pair.b}, [&] { return pair.b.messages.size() == 1; });
  pair.link.reset();
  run({&pair.a, &pair.b}, [&] { return !pair.b.closed.empty(); });
}

inline void check_deaths(const Subject& s) {
  for (const auto each : {a_killed_process_is_an_error, a_stopped_process_is_a_stall_that_goes_on,
                          a_link_that_nobody_holds_ends}) {
    each(s);
  }
}

}  // namespace flowtrain::transport::conformance
