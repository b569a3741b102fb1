#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>

#include "base/deadline.hpp"
#include "transport/grants.hpp"

namespace flowtrain::transport {

/// A peer that broke a rule. Its link is closed.
struct Refusal {
  std::uint64_t session;  ///< 0 for a peer that opened none.
  std::string peer;
  Reason reason;
};

/// Callbacks of a transport, for the program that owns the memory. Called by Transport::progress
/// alone. They may call the transport and its links, except for progress and the destructor.
class Receiver {
 public:
  virtual ~Receiver() = default;
  /// A payload lies in granted memory. The sender is told once this returns.
  virtual void on_placed(const Placement& placement) = 0;
  virtual void on_message(std::uint64_t session, const Header& header) = 0;
  virtual void on_refused(const Refusal& refusal) = 0;
  /// The peer has published placement `number` of a link of this process.
  virtual void on_acknowledged(std::uint64_t session, std::uint64_t number) = 0;
  /// A link to or from this process has ended otherwise than by dismiss or abort. If it led here,
  /// its session and the unused grants have ended with it. Not told of a peer that dies before it
  /// has opened its session, as it may be anybody.
  virtual void on_closed(std::uint64_t session, const std::string& why) = 0;
};

/// Writes into memory of one peer, as its grants allow.
///
/// Memory:   holds references to at most kMaxPending payloads, no copies. A payload must stay as it
///           is until it is acknowledged, or the link has an error.
/// Threads:  that of the transport, which outlives the link.
/// Progress: no call waits. A peer that is stopped is a stall, for as long as it lasts: who is dead
///           is decided elsewhere, and told by abort.
/// Ordering: placements may be acknowledged in any order.
/// Errors:   that of the link is final. Payloads without an acknowledgement may have arrived.
class Link {
 public:
  static constexpr std::size_t kMaxPending = 1024;

  Link() = default;
  virtual ~Link() = default;
  Link(const Link&) = delete;
  Link& operator=(const Link&) = delete;

  /// @returns Number of the placement, from 1; nothing if kMaxPending are pending or the link has
  ///          an error.
  virtual std::optional<std::uint64_t> place(const Grant& grant, const Header& header,
                                             const std::byte* data, std::uint64_t bytes) = 0;
  /// Sends a header without a payload. False as for `place`.
  virtual bool send(const Header& header) = 0;
  /// Placements that are not acknowledged, and messages that are not sent.
  virtual std::size_t pending() const = 0;
  /// Time for which the peer has taken nothing although something is pending; otherwise 0.
  virtual std::int64_t stalled_ns() const = 0;
  /// Empty while the link can be used.
  virtual const std::string& error() const = 0;
  /// Ends the link. What is pending is dropped, and its memory not read any more.
  virtual void abort() = 0;
};

/// Moves payloads from memory of one process into memory of another, on one path.
///
/// Memory:   that of the caller, and a fixed amount per link: only granted memory is written.
/// Threads:  one.
/// Progress: only in `progress`, except that `place` and `send` may write at once. The one
///           timeout is that of a link which is connecting.
/// Ordering: on_placed comes after all bytes of the payload.
/// Errors:   the caller's mistakes throw BadArgument, a lack of resources SystemCallError; what
///           peers do is told to the Receiver and by Link::error.
class Transport {
 public:
  Transport(Receiver& receiver, std::uint32_t max_grants)
      : receiver_(receiver), grants_(max_grants) {}
  virtual ~Transport() = default;
  Transport(const Transport&) = delete;
  Transport& operator=(const Transport&) = delete;

  /// Lets peers write into this memory by grants. It must outlive the region.
  /// @returns Number of the region.
  virtual std::uint32_t add_region(std::byte* data, std::uint64_t bytes) {
    return grants_.add_region(data, bytes);
  }
  /// As add_region, of memory of a CUDA device from which payloads are then sent without a copy in
  /// the host. Nothing if this path does not do that.
  virtual std::optional<std::uint32_t> add_device_region(std::uint64_t /*address*/,
                                                         std::uint64_t /*bytes*/) {
    return std::nullopt;
  }
  /// As GrantTable::remove_region. The memory is not written afterwards.
  virtual void remove_region(std::uint32_t region) { grants_.remove_region(region); }
  /// Registrations of memory with devices: one per region, whatever is moved.
  virtual std::uint64_t registrations() const { return 0; }
  /// Lets a peer open one link to this process.
  void admit(const Session& session) { grants_.admit(session); }
  /// Closes the link of a session to this process and ends its grants: afterwards their memory is
  /// not written any more.
  virtual void dismiss(std::uint64_t session) = 0;
  /// As GrantTable::can_grant.
  bool can_grant() const noexcept { return grants_.can_grant(); }
  /// As GrantTable::grant.
  std::optional<Grant> grant(std::uint64_t session, std::uint32_t region, std::uint64_t offset,
                             std::uint64_t bytes) {
    return grants_.grant(session, region, offset, bytes);
  }

  /// Limits how long the connection of a link may take to stand: 10 s without this call. Later the
  /// link has an error, since neither kernels nor UCX notice soon that nothing answers.
  void limit_connect(std::int64_t ns) { connect_limit_ns_ = ns; }

  /// Where peers connect to.
  virtual std::string address() const = 0;
  /// A link to a peer that has admitted the session. Returns before the peer has answered.
  virtual std::shared_ptr<Link> connect(const std::string& address, const Session& session) = 0;

  /// Readable when `progress` has something to do, provided that `arm` returned true before.
  virtual int progress_fd() const = 0;
  /// Prepares a wait for progress_fd. False if there is something to do at once.
  virtual bool arm() { return true; }
  /// Does what can be done without waiting. False if there was nothing to do.
  virtual bool progress() = 0;
  /// The path and its links, for people.
  virtual std::string explain() const = 0;

  /// Progresses once, after a wait for something to do until the deadline.
  bool wait(const Deadline& deadline);

 protected:
  Receiver& receiver_;
  GrantTable grants_;
  std::int64_t connect_limit_ns_ = 10'000'000'000;
};

}  // namespace flowtrain::transport
