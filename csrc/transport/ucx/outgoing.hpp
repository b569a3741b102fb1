#pragma once

#include <deque>
#include <optional>
#include <string>

#include "transport/pending.hpp"
#include "transport/ucx/endpoint.hpp"

namespace flowtrain::transport::ucx {

/// Sending end. It waits with everything but the hello until the owner has opened the session, so
/// that nothing can overtake the hello. One frame acknowledges all placements up to a number.
class Outgoing final : public Endpoint, public Link {
 public:
  Outgoing(Engine& engine, const PeerAddress& peer, const Session& session, Receiver& receiver);
  /// Asks the owner to open the session.
  void greet(const Ticket& ticket);

  std::optional<std::uint64_t> place(const Grant& grant, const Header& header,
                                     const std::byte* data, std::uint64_t bytes) override;
  bool send(const Header& header) override;
  std::size_t pending() const override { return pending_.count(); }
  std::int64_t stalled_ns() const override { return pending_.stalled_ns(); }
  const std::string& error() const override { return error_; }
  void abort() override;

  Status on_message(const void* header, std::size_t header_bytes, void* data, std::size_t bytes,
                    bool announced) noexcept override;
  void handle(const Event& event) override;
  const std::string& peer() const { return peer_; }
  /// Null once it is closed.
  Worker* worker() const { return worker_.get(); }

 private:
  struct Item {
    Frame frame;
    const std::byte* data;
    std::uint64_t bytes;
  };
  bool can_take() const { return error_.empty() && pending_.count() < kMaxPending; }
  void put(Frame frame, const std::byte* data, std::uint64_t bytes);
  void sent(const Frame& frame) override;
  void acknowledge(std::uint64_t number);
  void fail(const std::string& why);
  void end(const std::string& error);

  std::string peer_;
  std::string own_address_;
  std::uint64_t session_;
  Receiver& receiver_;
  bool is_welcome_ = false;
  std::deque<Item> waiting_;  // Until then.
  std::uint64_t numbered_ = 0;
  std::uint64_t acknowledged_ = 0;
  Pending pending_;
  std::string error_;
};

}  // namespace flowtrain::transport::ucx
