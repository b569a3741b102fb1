#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "transport/transport.hpp"

namespace flowtrain::transport {

/// Hosts in one process, and a network between them that delays and reorders, for tests. All that
/// happens follows from the seed and the order of the calls.
///
/// Memory:   of its own. Outlived by the transports it has opened.
/// Threads:  one.
/// Progress: time is a count of calls of `progress`, of any transport.
/// Ordering: placements of a link are moved in pieces, at the same time, and end in any order.
/// Errors:   as the interface has it.
class FakeNetwork {
 public:
  struct Options {
    std::uint64_t seed = 1;
    std::uint32_t max_delay = 8;       ///< Calls of `progress` until something arrives.
    std::uint64_t piece_bytes = 4096;  ///< Moved at once.
    bool reads_devices = false;        ///< Of the fake driver, whose memory is the host's.
  };
  explicit FakeNetwork(const Options& options);
  ~FakeNetwork();

  /// A transport on a new host.
  std::unique_ptr<Transport> open(Receiver& receiver, std::uint32_t max_grants = 4096);
  /// As SIGKILL of the process with this address: its peers are told. The transport does nothing
  /// more.
  void kill(const std::string& address);
  /// Nothing passes between two hosts any more, in either direction, and nobody is told.
  void cut(const std::string& one, const std::string& other);
  /// Ends a cut. What was on its way arrives.
  void mend(const std::string& one, const std::string& other);

  /// A peer that sends what it likes.
  class Raw {
   public:
    virtual ~Raw() = default;
    /// Sends a frame and any number of bytes.
    virtual void send(const Frame& frame, const std::byte* data, std::uint64_t bytes) = 0;
  };
  std::unique_ptr<Raw> connect_raw(const std::string& address);

  struct State;

 private:
  std::shared_ptr<State> state_;
};

}  // namespace flowtrain::transport
