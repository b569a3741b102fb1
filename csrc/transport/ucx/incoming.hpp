#pragma once

#include <bitset>
#include <cstdint>
#include <string>

#include "transport/transport.hpp"
#include "transport/ucx/endpoint.hpp"

namespace flowtrain::transport::ucx {

/// Receiving end. A frame is checked when it arrives, before UCX is given memory for its payload.
class Incoming final : public Endpoint {
 public:
  /// Errors: UcxError if the peer cannot be reached, BadArgument if it has no address.
  Incoming(Engine& engine, const Door::Guest& guest, GrantTable& grants, Receiver& receiver);
  /// Tells the peer that its session is open.
  void welcome();

  Status on_message(const void* header, std::size_t header_bytes, void* data, std::size_t bytes,
                    bool announced) noexcept override;
  void handle(const Event& event) override;
  /// Tells the peer what has been published since the last time.
  void acknowledge();
  /// Ends it if the peer has been refused for longer than `ns`.
  void expire(std::int64_t ns);
  /// Ends it because this process has ended its session.
  void dismiss();
  std::uint64_t session() const { return session_; }
  bool is_refused() const { return is_refused_; }
  const std::string& peer() const { return peer_; }

 private:
  /// Also the most that a peer may have pending.
  static constexpr std::size_t kWindow = Link::kMaxPending;

  Reason check(const Frame& frame, void* data, std::size_t bytes, bool announced);
  Reason place(const Frame& frame, void* data, std::size_t bytes, bool announced);
  bool is_expected(std::uint64_t number) const;
  void received(const Frame& frame) override;
  void sent(const Frame& frame) override;
  void refuse(Reason reason);
  void send_refusal(Reason reason);
  /// Ends the session of a peer that was refused, once UCX does not write for it any more.
  void end_refused();
  void fail(const std::string& why);

  GrantTable& grants_;
  Receiver& receiver_;
  std::string peer_;
  std::uint64_t session_;
  bool is_refused_ = false;
  Reason unreported_ = Reason::kNone;  // Of the refusal, until the receiver has been told.
  std::int64_t refused_ns_ = 0;
  std::bitset<kWindow> arrived_;  // Numbers above placed_, by their remainder.
  std::bitset<kWindow> done_;     // Those of them whose payload has been published.
  std::uint64_t placed_ = 0;      // All placements up to this number have been published.
  std::uint64_t told_ = 0;        // Number of the last acknowledgement.
  bool is_telling_ = false;       // It has not been sent yet.
};

}  // namespace flowtrain::transport::ucx
