#pragma once

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <memory>
#include <source_location>
#include <string>
#include <utility>
#include <vector>

#include "base/deadline.hpp"
#include "base/error.hpp"
#include "check.hpp"
#include "transport/transport.hpp"

namespace flowtrain::transport::conformance {

using Bytes = std::vector<std::byte>;

/// A peer that sends what it likes. Its destructor closes the connection.
class Raw {
 public:
  virtual ~Raw() = default;
  virtual void send(const Frame& frame, const Bytes& payload) = 0;
};

struct Subject {
  std::function<std::unique_ptr<Transport>(Receiver&)> open;
  std::function<std::unique_ptr<Raw>(const std::string& address)> connect_raw;
};

/// A process with one region of memory, and all that its transport has told it.
class Host : public Receiver {
 public:
  explicit Host(const Subject& subject, std::uint64_t bytes = 1 << 16)
      : memory(bytes, std::byte{0xee}), transport(subject.open(*this)) {
    region = transport->add_region(memory.data(), memory.size());
  }

  void on_placed(const Placement& placement) override {
    placed.push_back(placement);
    if (when_placed) when_placed(placement);
  }
  void on_message(std::uint64_t, const Header& header) override { messages.push_back(header); }
  void on_refused(const Refusal& refusal) override { refused.push_back(refusal); }
  void on_acknowledged(std::uint64_t, std::uint64_t number) override {
    acknowledged.push_back(number);
  }
  void on_closed(std::uint64_t, const std::string& why) override { closed.push_back(why); }

  Grant grant(std::uint64_t session, std::uint64_t offset, std::uint64_t bytes) {
    const auto found = transport->grant(session, region, offset, bytes);
    CHECK(found);
    return *found;
  }
  bool is_untouched() const {
    return std::ranges::all_of(memory, [](std::byte each) { return each == std::byte{0xee}; });
  }

  Bytes memory;
  std::uint32_t region = 0;
  std::vector<Placement> placed;
  std::vector<Header> messages;
  std::vector<Refusal> refused;
  std::vector<std::uint64_t> acknowledged;
  std::vector<std::string> closed;
  std::function<void(const Placement&)> when_placed;
  std::unique_ptr<Transport> transport;  // Ends first.
};

inline Session session_of(std::uint64_t id) {
  Session session{id, {}};
  session.ticket.fill(static_cast<std::byte>(id));
  return session;
}

inline Header header_of(std::uint64_t number) {
  Header header{};
  std::memcpy(header.data(), &number, sizeof(number));
  return header;
}

inline Bytes pattern(std::uint64_t seed, std::uint64_t bytes) {
  Bytes found(bytes);
  for (std::uint64_t i = 0; i < bytes; ++i) {
    found[i] = static_cast<std::byte>((seed * 131 + i * 7 + (i >> 8)) % 233);
  }
  return found;
}

inline bool holds(const Host& host, std::uint64_t offset, const Bytes& expected) {
  return std::equal(expected.begin(), expected.end(),
                    host.memory.begin() + static_cast<long>(offset));
}

/// Whether an error names the peer at this address; what follows a '#' is not for people.
inline bool names(const std::string& error, const std::string& address) {
  return error.find(address.substr(0, address.find('#'))) != std::string::npos;
}

/// Lets hosts progress until something is true; names the caller's line if it never is.
template <class Done>
void run(std::vector<Host*> hosts, Done&& done,
         const std::source_location& caller = std::source_location::current()) {
  const Deadline deadline = Deadline::in(30);
  while (!done()) {
    if (deadline.passed()) {
      std::fprintf(stderr, "%s:%u: not so within 30 s\n", caller.file_name(), caller.line());
      std::abort();
    }
    for (Host* const host : hosts) host->transport->progress();
  }
}

/// Lets hosts progress for so long that what was going to happen has happened.
inline void settle(std::vector<Host*> hosts) {
  for (const Deadline deadline = Deadline::in(0.05); !deadline.passed();) {
    for (Host* const host : hosts) host->transport->progress();
  }
}

/// Lets a transport progress until nothing of a link is pending. False after the deadline, or if
/// the link has an error.
inline bool flush(Transport& transport, const Link& link, const Deadline& deadline) {
  while (link.error().empty() && link.pending() > 0) {
    if (!transport.wait(deadline)) return false;
  }
  return link.error().empty();
}

/// Two hosts with a link from `a` to memory of `b`.
struct Pair {
  explicit Pair(const Subject& subject, std::uint64_t bytes = 1 << 16)
      : a(subject), b(subject, bytes) {
    b.transport->admit(session);
    link = a.transport->connect(b.transport->address(), session);
  }
  Session session = session_of(7);
  Host a, b;
  std::shared_ptr<Link> link;
};

}  // namespace flowtrain::transport::conformance
