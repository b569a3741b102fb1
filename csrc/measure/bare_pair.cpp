#include "measure/bare_pair.hpp"

#include <fcntl.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/socket.h>

#include <cerrno>
#include <cstring>
#include <utility>

#include "base/error.hpp"
#include "os/fd.hpp"
#include "transport/sockets/endpoint.hpp"

namespace flowtrain::measure {
namespace {

// For a stranger who has connected to the receiver.
constexpr double kPatienceS = 1.0;

void limit(const os::Fd& socket, double seconds) {
  const timeval limit{static_cast<time_t>(seconds), 0};
  ::setsockopt(socket.get(), SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof(limit));
  ::setsockopt(socket.get(), SOL_SOCKET, SO_SNDTIMEO, &limit, sizeof(limit));
}

bool wait_for(const os::Fd& socket, short events) {
  pollfd ready{socket.get(), events, 0};
  int found;
  do {
    found = ::poll(&ready, 1, static_cast<int>(kFlowTimeoutS * 1000));
  } while (found < 0 && errno == EINTR);
  return found > 0;
}

/// False if the peer has ended.
bool read(const os::Fd& socket, std::byte* to, std::uint64_t bytes) {
  while (bytes > 0) {
    const ssize_t got = ::recv(socket.get(), to, bytes, MSG_WAITALL);
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) throw_errno("placements: the bare pair cannot receive");
    if (got == 0) return false;
    to += got;
    bytes -= static_cast<std::uint64_t>(got);
  }
  return true;
}

void write(const os::Fd& socket, const void* from, std::uint64_t bytes) {
  const auto* next = static_cast<const std::byte*>(from);
  while (bytes > 0) {
    const ssize_t sent = ::send(socket.get(), next, bytes, MSG_NOSIGNAL);
    if (sent < 0 && errno == EINTR) continue;
    if (sent <= 0) throw_errno("placements: the bare pair cannot send");
    next += sent;
    bytes -= static_cast<std::uint64_t>(sent);
  }
}

/// The connection of the sender: of the one who has the ticket.
os::Fd accept_sender(const PlacementFlow& flow, const os::Fd& listening) {
  while (wait_for(listening, POLLIN)) {
    os::Fd socket(::accept4(listening.get(), nullptr, nullptr, SOCK_CLOEXEC));
    if (!socket && errno != ECONNABORTED && errno != EINTR && errno != EAGAIN) {
      throw_errno("placements: the bare pair cannot accept its sender");
    }
    if (!socket) continue;  // It has gone already.
    limit(socket, kPatienceS);
    std::string ticket(flow.ticket.size(), '\0');
    const ssize_t got = ::recv(socket.get(), ticket.data(), ticket.size(), MSG_WAITALL);
    if (got == static_cast<ssize_t>(ticket.size()) && ticket == flow.ticket) return socket;
  }
  throw PoolTimeout("placements: no sender of the bare pair has connected");
}

}  // namespace

void receive_bare(const PlacementFlow& flow, const TellReceiver& tell) {
  std::vector<std::byte> memory(flow.bytes * flow.window);
  std::memset(memory.data(), 1, memory.size());
  const os::Fd listening = transport::listen_on(flow.host);
  tell(transport::local_address(listening.get()), 0);
  const os::Fd socket = accept_sender(flow, listening);
  limit(socket, kFlowTimeoutS);
  const int on = 1;
  ::setsockopt(socket.get(), IPPROTO_TCP, TCP_NODELAY, &on, sizeof(on));
  const std::byte answer{};
  for (std::uint64_t i = 0;; ++i) {
    if (!read(socket, memory.data() + flow.bytes * (i % flow.window), flow.bytes)) return;
    write(socket, &answer, 1);
  }
}

FlowFigure send_bare(const PlacementFlow& flow, const std::string& address, double seconds) {
  const os::Fd socket = transport::connect_to(address);
  int failed = 0;
  socklen_t size = sizeof(failed);
  if (!wait_for(socket, POLLOUT)) throw PoolTimeout("placements: no connection to " + address);
  ::getsockopt(socket.get(), SOL_SOCKET, SO_ERROR, &failed, &size);
  if (failed != 0) {
    throw SystemCallError("placements: cannot connect to " + address + ": " +
                          std::strerror(failed));
  }
  ::fcntl(socket.get(), F_SETFL, ::fcntl(socket.get(), F_GETFL) & ~O_NONBLOCK);
  limit(socket, kFlowTimeoutS);
  write(socket, flow.ticket.data(), flow.ticket.size());

  const std::vector<std::byte> payload(flow.bytes, std::byte{7});
  std::vector<std::int64_t> sent_ns(flow.window);
  Arrivals arrivals(flow.bytes, flow.window, seconds);
  std::uint64_t sent = 0, answered = 0;
  const auto take = [&](int flags) {
    std::byte answer;
    if (::recv(socket.get(), &answer, 1, flags) != 1) return false;
    arrivals.add(now_ns() - sent_ns[answered++ % flow.window]);
    return true;
  };
  for (;;) {
    if (sent - answered < flow.window && arrivals.wants_more()) {
      sent_ns[sent++ % flow.window] = now_ns();
      write(socket, payload.data(), payload.size());
      // Answers that are there are taken, as they would be by a program that waits for both.
      while (sent - answered > 0 && sent - answered < flow.window && take(MSG_DONTWAIT)) {
      }
    } else if (answered == sent) {
      return arrivals.figure();
    } else if (!take(0)) {
      throw SystemCallError("placements: the receiver of the bare pair at " + address +
                            " has ended");
    }
  }
}

}  // namespace flowtrain::measure
