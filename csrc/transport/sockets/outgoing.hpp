#pragma once

#include <deque>
#include <optional>
#include <string>

#include "transport/pending.hpp"
#include "transport/sockets/connection.hpp"
#include "transport/transport.hpp"

namespace flowtrain::transport {

/// Sending end of a TCP connection: frames and payloads go out in order, and one frame acknowledges
/// all placements up to a number.
class Outgoing final : public Connection, public Link {
 public:
  Outgoing(int epoll, const std::string& address, const Session& session, Receiver& receiver);

  std::optional<std::uint64_t> place(const Grant& grant, const Header& header,
                                     const std::byte* data, std::uint64_t bytes) override;
  bool send(const Header& header) override;
  std::size_t pending() const override { return pending_.count(); }
  std::int64_t stalled_ns() const override { return pending_.stalled_ns(); }
  const std::string& error() const override { return error_; }
  void abort() override;

  void on_ready(std::uint32_t events) override;
  std::uint64_t session() const { return session_; }
  const std::string& peer() const { return peer_; }

 private:
  struct Item {
    Frame frame;
    const std::byte* data;
    std::size_t bytes;
  };
  static constexpr std::size_t kMaxParts = 64;

  bool can_take() const { return error_.empty() && pending_.count() < kMaxPending; }
  void queue(const Frame& frame, const std::byte* data, std::size_t bytes);
  void write();
  /// Drops what has been written from the front of the queue.
  void advance(std::size_t bytes);
  void read();
  void handle(const Frame& frame);
  void fail(const std::string& why);

  std::string peer_;
  std::uint64_t session_;
  Receiver& receiver_;
  std::deque<Item> queue_;
  std::size_t written_ = 0;  // Of the item at the front.
  std::uint64_t numbered_ = 0;
  std::uint64_t sent_ = 0;
  std::uint64_t acknowledged_ = 0;
  Frame in_{};
  std::size_t in_bytes_ = 0;
  Pending pending_;
  std::string write_error_;
  std::string error_;
};

}  // namespace flowtrain::transport
