#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <utility>

#include "base/clock.hpp"
#include "transport/pending.hpp"
#include "transport/transport.hpp"

namespace flowtrain::transport {

/// A link without its path: makes frames, numbers placements, counts what is pending, and ends
/// once.
class FramedLink : public Link {
 public:
  std::optional<std::uint64_t> place(const Grant& grant, const Header& header,
                                     const std::byte* data, std::uint64_t bytes) final;
  bool send(const Header& header) final;
  std::size_t pending() const final { return pending_.count(); }
  std::int64_t stalled_ns() const final { return pending_.stalled_ns(); }
  const std::string& error() const final { return error_; }
  void abort() final;

  const std::string& peer() const { return peer_; }

  /// Whether its connection does not stand yet.
  bool is_connecting() const { return !is_connected_ && error_.empty(); }
  /// Ends the link if it has been connecting for longer than this.
  void expire(std::int64_t ns);

 protected:
  /// @param path  For messages, as in "over sockets".
  FramedLink(std::string peer, const char* path, std::uint64_t session, Receiver& receiver)
      : peer_(std::move(peer)), path_(path), session_(session), receiver_(receiver) {}

  /// Sends a frame, which counts as pending until it is acknowledged, or is a message and sent.
  virtual void put(const Frame& frame, const std::byte* data, std::uint64_t bytes) = 0;
  /// Drops what waits, and closes the connection; at once if this side aborts the link.
  virtual void drop(bool aborts) = 0;

  Frame hello(const Ticket& ticket) const;
  /// Takes an acknowledgement of all placements up to a number, of `sent`.
  void acknowledge_to(std::uint64_t number, std::uint64_t sent);
  /// Takes the acknowledgement of one placement.
  void acknowledge(std::uint64_t number);
  /// Ends the link, and tells the receiver.
  void fail(const std::string& why);
  /// Its connection stands.
  void connected() { is_connected_ = true; }
  std::uint64_t numbered() const { return numbered_; }

  Pending pending_;

 private:
  bool can_take() const { return error_.empty() && pending_.count() < kMaxPending; }
  Frame frame_of(FrameKind kind, const Header& header) const;
  void end(const std::string& error, bool aborts);

  std::string peer_;
  const char* path_;
  std::uint64_t session_;
  Receiver& receiver_;
  std::int64_t begun_ns_ = now_ns();
  bool is_connected_ = false;
  std::uint64_t numbered_ = 0;
  std::uint64_t acknowledged_ = 0;
  std::string error_;
};

}  // namespace flowtrain::transport
