#pragma once

#include <cstdint>
#include <string>

#include "transport/sockets/connection.hpp"
#include "transport/transport.hpp"

namespace flowtrain::transport {

/// Receiving end of a TCP connection. A payload goes from the socket straight into the memory of
/// its grant.
class Incoming final : public Connection {
 public:
  Incoming(int epoll, os::Fd socket, GrantTable& grants, Receiver& receiver);

  void on_ready(std::uint32_t events) override;
  /// 0 until the peer has opened one.
  std::uint64_t session() const { return session_; }
  /// Whether the peer has opened no session, or has been refused, for longer than `ns`.
  bool is_overdue(std::int64_t ns) const;
  bool is_stranger() const { return session_ == 0; }
  const std::string& peer() const { return peer_; }

 private:
  void read();
  /// One read. False if nothing more is to be read now.
  bool read_some(std::size_t& turn);
  void handle(const Frame& frame);
  void place(const Frame& frame);
  void placed();
  void write();
  void discard();
  void refuse(Reason reason);
  void fail(const std::string& why);

  GrantTable& grants_;
  Receiver& receiver_;
  std::string peer_;
  std::uint64_t session_ = 0;
  bool is_refused_ = false;
  std::int64_t since_ns_;      // The connection, or the refusal.
  Frame in_{};                 // The frame that is arriving.
  std::size_t in_bytes_ = 0;   // Of it.
  Frame placing_{};            // The placement whose payload is arriving.
  std::byte* to_ = nullptr;    // Where its next byte goes.
  std::uint64_t left_ = 0;     // Bytes of it that are missing.
  std::uint64_t placed_ = 0;   // Number of the last placement.
  Frame out_{};                // The frame that is being sent.
  std::size_t out_bytes_ = 0;  // Of it, still to be sent.
  std::uint64_t told_ = 0;     // Number of the last acknowledgement in out_.
};

}  // namespace flowtrain::transport
