#pragma once

#include <cstdint>
#include <stdexcept>
#include <string>

#include "transport/grants.hpp"

namespace flowtrain::gateway {

/// The gateway of another host, as both have agreed upon beforehand.
struct Peer {
  std::string name;
  std::string address;           ///< Of its transport.
  std::uint64_t pool;            ///< Nonce of its pool.
  std::uint64_t process;         ///< Number that its process has drawn.
  std::uint32_t max_cells;       ///< Of its pool.
  transport::Session to_peer;    ///< Which it admits.
  transport::Session from_peer;  ///< Which this gateway admits.
};

/// Whether a peer is the process, or has the pool, that had its name before.
enum class Since {
  kSame,      ///< The same process: it knows what it has.
  kReplaced,  ///< Another process with the same pool, which has what was published.
  kNew,       ///< Another pool, or the first peer of this name.
};

/// The peer has sent what the protocol does not allow; ends its links. Never leaves the gateway.
class BrokenRule : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

}  // namespace flowtrain::gateway
