#pragma once

#include <cstdint>
#include <string>

#include "os/fd.hpp"

namespace flowtrain::transport {

/// A non-blocking TCP socket that listens on a numeric address of this host, at a port that the
/// system chooses.
os::Fd listen_on(const std::string& host);
/// The address that a listening socket is bound to, as in "10.0.0.1:4711" or "[::1]:4711".
std::string local_address(int socket);
std::string peer_address(int socket);

/// A non-blocking TCP socket whose connection to "host:port" has been started.
///
/// Errors: BadArgument for an address that is not numeric; SystemCallError if it cannot be reached.
os::Fd connect_to(const std::string& address);

}  // namespace flowtrain::transport
