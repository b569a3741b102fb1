#include "transport/address.hpp"

#include <netdb.h>
#include <netinet/in.h>

#include <cstring>
#include <memory>

#include "base/error.hpp"

namespace flowtrain::transport {

Address address_of(const std::string& host, const std::string& port) {
  addrinfo hints{};
  hints.ai_flags = AI_NUMERICHOST | AI_NUMERICSERV;
  hints.ai_socktype = SOCK_STREAM;
  addrinfo* found = nullptr;
  if (::getaddrinfo(host.c_str(), port.c_str(), &hints, &found) != 0) {
    throw BadArgument("address '" + host + "', port '" + port +
                      "': not numeric; write it as 10.0.0.1:4711 or [::1]:4711");
  }
  const std::unique_ptr<addrinfo, decltype(&::freeaddrinfo)> owner(found, &::freeaddrinfo);
  Address address;
  address.size = found->ai_addrlen;
  std::memcpy(&address.storage, found->ai_addr, found->ai_addrlen);
  return address;
}

Address parse_address(const std::string& text) {
  const std::size_t colon = text.rfind(':');
  if (colon == std::string::npos) {
    throw BadArgument("address '" + text + "': no port; write it as 10.0.0.1:4711");
  }
  std::string host = text.substr(0, colon);
  if (host.size() > 2 && host.front() == '[' && host.back() == ']') {
    host = host.substr(1, host.size() - 2);
  }
  return address_of(host, text.substr(colon + 1));
}

std::string text_of(const sockaddr_storage& address) {
  char host[NI_MAXHOST], port[NI_MAXSERV];
  const bool is_v6 = address.ss_family == AF_INET6;
  const socklen_t size = is_v6 ? sizeof(sockaddr_in6) : sizeof(sockaddr_in);
  if (::getnameinfo(reinterpret_cast<const sockaddr*>(&address), size, host, sizeof(host), port,
                    sizeof(port), NI_NUMERICHOST | NI_NUMERICSERV) != 0) {
    return "an unknown address";
  }
  std::string name = is_v6 ? "[" : "";
  name += host;
  name += is_v6 ? "]:" : ":";
  return name + port;
}

}  // namespace flowtrain::transport
