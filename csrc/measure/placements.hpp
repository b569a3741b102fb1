#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <vector>

#include "measure/arrivals.hpp"

namespace flowtrain::measure {

/// A flow of payloads of one size between two processes, which may be on two hosts.
struct PlacementFlow {
  std::string path;                 ///< "tcp", "ucx", or "pair": bare send and receive.
  std::string host;                 ///< Numeric address of an interface of this process's host.
  std::string ticket;               ///< 32 characters that only the two processes know.
  std::string library;              ///< Of UCX; the default search if empty.
  std::vector<std::string> others;  ///< Copies of UCX for the search.
  std::uint64_t bytes;              ///< Of a payload.
  std::uint32_t window;             ///< Payloads under way, each with memory of its own.
};

/// Takes the receiver's address, and how often it has registered memory.
using TellReceiver = std::function<void(const std::string& address, std::uint64_t registrations)>;

/// Listens, calls `tell`, and receives until the sender has gone. The memory of a payload is
/// granted anew when the payload has arrived. The receiver of a bare pair reads each payload into
/// memory of its own, and answers it with a byte.
///
/// Pins the calling thread to its second core, if it has two.
///
/// Errors: BadArgument for an unknown path, a load of nothing, or another ticket size;
///         SystemCallError if the sender breaks a rule; those of the transport.
void receive_placements(const PlacementFlow& flow, const TellReceiver& tell);

/// Keeps `window` payloads under way to the receiver at `address`, for `seconds`.
///
/// Pins the calling thread to its first core.
///
/// Errors: as receive_placements; PoolTimeout if the receiver takes nothing for 60 s;
///         SystemCallError if it ends.
FlowFigure send_placements(const PlacementFlow& flow, const std::string& address, double seconds);

/// A copy of UCX, and the settings with which the transport opens it for an address of this host.
struct UcxCopy {
  std::string library;
  std::string version;
  std::map<std::string, std::string> settings;
};

/// Errors: UcxError if there is none that can be used.
UcxCopy find_ucx(const std::string& host, const std::string& library,
                 const std::vector<std::string>& others);

/// Rate of a copy within one process, between private arrays, in bytes per second.
double measure_memcpy(std::uint64_t bytes, double seconds);

}  // namespace flowtrain::measure
