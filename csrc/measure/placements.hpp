#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

namespace flowtrain::measure {

/// A flow of payloads of one size from a process to another over the loopback interface.
struct PlacementLoad {
  std::string path;                             ///< "tcp", "ucx", or "pair": bare send and receive.
  std::string library;                          ///< Of UCX; the default search if empty.
  std::vector<std::string> others;              ///< Copies of UCX for the search.
  std::map<std::string, std::string> settings;  ///< Of UCX.
  std::uint64_t bytes;
  std::uint32_t window;  ///< Payloads under way, each with memory of its own.
  double seconds;
};

struct PlacementFigure {
  double bytes_per_s;
  double round_trip_ns;                         ///< Median from a placement to its acknowledgement.
  std::uint64_t registrations;                  ///< By the receiver.
  std::string library;                          ///< Path of UCX.
  std::string version;                          ///< Of UCX.
  std::map<std::string, std::string> settings;  ///< Of UCX, with those of the transport.
};

/// Measures the flow: the sender keeps `window` payloads under way, and the receiver grants the
/// memory of each anew when it has arrived. The receiver of a bare pair reads each payload into
/// memory of its own, and answers it with a byte.
///
/// The caller's process must have one thread: the receiver is its forked child. Both are pinned, to
/// two cores if there are two.
///
/// Errors: BadArgument for an unknown path, or a load of nothing; SystemCallError if the receiver
///         fails; those of the transport.
PlacementFigure measure_placements(const PlacementLoad& load);

/// Rate of a copy within one process, between private arrays, in bytes per second.
double measure_memcpy(std::uint64_t bytes, double seconds);

}  // namespace flowtrain::measure
