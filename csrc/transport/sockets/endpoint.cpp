#include "transport/sockets/endpoint.hpp"

#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/socket.h>

#include <cerrno>
#include <memory>

#include "base/error.hpp"

namespace flowtrain::transport {
namespace {

using Resolved = std::unique_ptr<addrinfo, decltype(&::freeaddrinfo)>;

/// Only numeric: a look-up of a name would block.
Resolved resolve(const std::string& host, const std::string& port) {
  addrinfo hints{};
  hints.ai_flags = AI_NUMERICHOST | AI_NUMERICSERV;
  hints.ai_socktype = SOCK_STREAM;
  addrinfo* found = nullptr;
  if (::getaddrinfo(host.c_str(), port.c_str(), &hints, &found) != 0) {
    throw BadArgument("address '" + host + "', port '" + port +
                      "': not numeric; write it as 10.0.0.1:4711 or [::1]:4711");
  }
  return {found, &::freeaddrinfo};
}

os::Fd tcp_socket(const addrinfo& at, const std::string& what) {
  os::Fd socket(::socket(at.ai_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
  if (!socket) throw_errno(what);
  return socket;
}

std::string name_of(int (*get)(int, sockaddr*, socklen_t*), int socket) {
  sockaddr_storage at{};
  socklen_t size = sizeof(at);
  auto* const address = reinterpret_cast<sockaddr*>(&at);
  char host[NI_MAXHOST], port[NI_MAXSERV];
  if (get(socket, address, &size) != 0 ||
      ::getnameinfo(address, size, host, sizeof(host), port, sizeof(port),
                    NI_NUMERICHOST | NI_NUMERICSERV) != 0) {
    return "an unknown address";
  }
  const bool is_v6 = at.ss_family == AF_INET6;
  std::string name = is_v6 ? "[" : "";
  name += host;
  name += is_v6 ? "]:" : ":";
  return name + port;
}

}  // namespace

os::Fd listen_on(const std::string& host) {
  const std::string what = "transport sockets: cannot listen on " + host;
  const Resolved at = resolve(host, "0");
  os::Fd socket = tcp_socket(*at, what);
  if (::bind(socket.get(), at->ai_addr, at->ai_addrlen) != 0 || ::listen(socket.get(), 64) != 0) {
    throw_errno(what);
  }
  return socket;
}

std::string local_address(int socket) { return name_of(&::getsockname, socket); }
std::string peer_address(int socket) { return name_of(&::getpeername, socket); }

os::Fd connect_to(const std::string& address) {
  const std::size_t colon = address.rfind(':');
  if (colon == std::string::npos) {
    throw BadArgument("address '" + address + "': no port; write it as 10.0.0.1:4711");
  }
  std::string host = address.substr(0, colon);
  if (host.size() > 2 && host.front() == '[' && host.back() == ']') {
    host = host.substr(1, host.size() - 2);
  }
  const std::string what = "transport sockets: cannot connect to " + address;
  const Resolved at = resolve(host, address.substr(colon + 1));
  os::Fd socket = tcp_socket(*at, what);
  const int on = 1;
  ::setsockopt(socket.get(), IPPROTO_TCP, TCP_NODELAY, &on, sizeof(on));
  if (::connect(socket.get(), at->ai_addr, at->ai_addrlen) != 0 && errno != EINPROGRESS) {
    throw_errno(what);
  }
  return socket;
}

}  // namespace flowtrain::transport
