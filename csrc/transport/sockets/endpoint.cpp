#include "transport/sockets/endpoint.hpp"

#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/socket.h>

#include <cerrno>

#include "base/error.hpp"
#include "transport/address.hpp"

namespace flowtrain::transport {
namespace {

os::Fd tcp_socket(const Address& at, const std::string& what) {
  os::Fd socket(::socket(at.storage.ss_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
  if (!socket) throw_errno(what);
  return socket;
}

std::string name_of(int (*get)(int, sockaddr*, socklen_t*), int socket) {
  Address at;
  at.size = sizeof(at.storage);
  if (get(socket, reinterpret_cast<sockaddr*>(&at.storage), &at.size) != 0) {
    return "an unknown address";
  }
  return text_of(at.storage);
}

}  // namespace

os::Fd listen_on(const std::string& host) {
  const std::string what = "transport sockets: cannot listen on " + host;
  const Address at = address_of(host, "0");
  os::Fd socket = tcp_socket(at, what);
  if (::bind(socket.get(), at.get(), at.size) != 0 || ::listen(socket.get(), 64) != 0) {
    throw_errno(what);
  }
  return socket;
}

std::string local_address(int socket) { return name_of(&::getsockname, socket); }
std::string peer_address(int socket) { return name_of(&::getpeername, socket); }

os::Fd connect_to(const std::string& address) {
  const Address at = parse_address(address);
  const std::string what = "transport sockets: cannot connect to " + address;
  os::Fd socket = tcp_socket(at, what);
  const int on = 1;
  ::setsockopt(socket.get(), IPPROTO_TCP, TCP_NODELAY, &on, sizeof(on));
  if (::connect(socket.get(), at.get(), at.size) != 0 && errno != EINPROGRESS) {
    throw_errno(what);
  }
  return socket;
}

}  // namespace flowtrain::transport
