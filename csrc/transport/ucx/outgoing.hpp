#pragma once

#include <deque>
#include <string>

#include "transport/framed_link.hpp"
#include "transport/ucx/endpoint.hpp"

namespace flowtrain::transport::ucx {

/// Sending end. It waits with everything but the hello until the owner has opened the session, so
/// that nothing can overtake the hello. One frame acknowledges all placements up to a number.
class Outgoing final : public Endpoint, public FramedLink {
 public:
  Outgoing(Engine& engine, const PeerAddress& peer, const Session& session, Receiver& receiver);
  /// Asks the owner to open the session.
  void greet(const Ticket& ticket);

  Status on_message(const void* header, std::size_t header_bytes, void* data, std::size_t bytes,
                    bool announced) noexcept override;
  void handle(const Event& event) override;
  /// Null once it is closed.
  Worker* worker() const { return worker_.get(); }

 private:
  struct Item {
    Frame frame;
    const std::byte* data;
    std::uint64_t bytes;
  };
  void put(const Frame& frame, const std::byte* data, std::uint64_t bytes) override;
  void drop(bool aborts) override;
  void sent(const Frame& frame) override;

  std::string own_address_;
  std::deque<Item> waiting_;  // While it is connecting: until the owner's welcome.
};

}  // namespace flowtrain::transport::ucx
