#pragma once

#include <sys/socket.h>

#include <string>

namespace flowtrain::transport::ucx {

/// Names that UCX has for the network interface with an address, and for the RDMA devices of the
/// same card: "eth0,mlx5_0:1". "all" if no interface has it.
///
/// UCX would otherwise choose among all interfaces, also those whose addresses mean another machine
/// to the peer, such as a bridge of containers.
std::string devices_of(const sockaddr_storage& address);

}  // namespace flowtrain::transport::ucx
