#pragma once

#include <map>
#include <memory>
#include <string>

#include "transport/transport.hpp"
#include "transport/ucx/library.hpp"

namespace flowtrain::transport {

struct UcxOptions {
  ucx::Search search;
  /// Settings of UCX without their prefix, as {"TCP_KEEPIDLE", "1s"}; they go before the
  /// environment. TCP_PUT_ENABLE stays "n".
  std::map<std::string, std::string> settings;
  /// Let the network card read memory of CUDA devices (GPUDirect RDMA), by dma-buf or peermem as
  /// UCX finds them.
  bool gpu_direct = false;
};

/// The settings with which UCX is opened for an address of this host, including those given.
std::map<std::string, std::string> ucx_settings(const std::string& host, const UcxOptions& options);

/// UCX, opened at run time: RDMA where the network has it, and TCP.
///
/// Peers connect by the address of a worker of UCX, without a listener of UCX: the connections that
/// a listener has taken outlive it, and call it when their first bytes arrive. A link has a worker
/// of its own, which ends with it.
///
/// A frame is an active message. A payload of more than 128 KiB is announced by its frame, and
/// moved into granted memory once the owner has checked it (rendezvous): over TCP by messages that
/// UCX copies there; for RDMA, UCX is asked to let the owner read from the peer, so that no key for
/// its memory leaves it. A smaller payload may come with its frame, and is copied once it is
/// checked. Puts over TCP, which nothing checks, are refused. Regions are registered once; a
/// payload within one is sent without another registration.
///
/// @param host  Numeric address of an interface of this host, on which peers reach it. Payloads go
///              through this interface, or the RDMA devices of the same card.
///
/// Errors: UcxError if UCX is not found or cannot be started, or cannot do what the options want;
///         BadArgument for an address that is not numeric.
std::unique_ptr<Transport> open_ucx(const std::string& host, Receiver& receiver,
                                    const UcxOptions& options = {},
                                    std::uint32_t max_grants = 4096);

}  // namespace flowtrain::transport
