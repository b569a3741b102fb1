#pragma once

#include <memory>
#include <string>

#include "transport/transport.hpp"

namespace flowtrain::transport {

/// TCP by the sockets of the kernel: the path that works everywhere.
///
/// A payload is sent from where it lies and received where it belongs: no copy of ours. Its socket
/// has no user timeout and no keepalive, since a stopped receiver would look like a dead one.
///
/// @param host  Numeric address of an interface of this host, on which peers reach it.
std::unique_ptr<Transport> open_sockets(const std::string& host, Receiver& receiver,
                                        std::uint32_t max_grants = 4096);

}  // namespace flowtrain::transport
