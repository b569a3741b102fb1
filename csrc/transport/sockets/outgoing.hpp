#pragma once

#include <deque>
#include <string>

#include "transport/framed_link.hpp"
#include "transport/sockets/connection.hpp"

namespace flowtrain::transport {

/// Sending end of a TCP connection: frames and payloads go out in order, and one frame acknowledges
/// all placements up to a number.
class Outgoing final : public Connection, public FramedLink {
 public:
  Outgoing(int epoll, const std::string& address, const Session& session, Receiver& receiver);

  void on_ready(std::uint32_t events) override;

 private:
  struct Item {
    Frame frame;
    const std::byte* data;
    std::size_t bytes;
  };
  static constexpr std::size_t kMaxParts = 64;

  void put(const Frame& frame, const std::byte* data, std::uint64_t bytes) override;
  void drop(bool aborts) override;
  void write();
  /// Drops what has been written from the front of the queue.
  void advance(std::size_t bytes);
  void read();
  void handle(const Frame& frame);

  std::deque<Item> queue_;
  std::size_t written_ = 0;  // Of the item at the front.
  std::uint64_t sent_ = 0;   // The last placement that was.
  Frame in_{};
  std::size_t in_bytes_ = 0;
  std::string write_error_;
};

}  // namespace flowtrain::transport
