#pragma once

#include <sys/socket.h>

#include <string>

namespace flowtrain::transport {

/// Address and port of a TCP socket.
struct Address {
  sockaddr_storage storage{};
  socklen_t size = 0;

  const sockaddr* get() const { return reinterpret_cast<const sockaddr*>(&storage); }
};

/// A numeric address, since a look-up of a name would block.
///
/// Errors: BadArgument for another.
Address address_of(const std::string& host, const std::string& port);
/// As `address_of`, of "10.0.0.1:4711" or "[::1]:4711".
Address parse_address(const std::string& text);
/// The text that parse_address reads.
std::string text_of(const sockaddr_storage& address);

}  // namespace flowtrain::transport
