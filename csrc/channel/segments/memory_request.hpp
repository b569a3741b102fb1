#pragma once

#include <cstdint>
#include <optional>
#include <set>
#include <string>
#include <utility>

#include "base/deadline.hpp"
#include "channel/layout/control.hpp"
#include "channel/liveness/lanes.hpp"
#include "os/fd_socket.hpp"

namespace flowtrain::channel {

/// How long calls that may wait allow an owner to answer. After that they continue with the memory
/// that is mapped.
inline constexpr double kOwnerResponseS = 0.1;

/// Path of the socket on which a handle hands out memory.
std::string socket_of(const os::Fd& folder, std::uint16_t lane);

/// A request for the memory of a segment: to its owner, and when that is gone, to the handles that
/// have mapped it, one after the other.
///
/// Memory:   a socket while an answer is missing.
/// Threads:  one at a time.
/// Progress: never waits.
/// Ordering: lane.mapped says which handles have the memory.
/// Errors:   throws for lack of descriptors.
class MemoryRequest {
 public:
  /// @param folder  Of the pool; has the sockets of owners.
  /// @param what    Names the segment in errors.
  MemoryRequest(const Control& control, const Lanes& lanes, const os::Fd& folder, std::string what,
                std::uint32_t index, SegmentWord word);

  std::uint16_t generation() const { return generation_of(word_); }
  /// Of calls that wait only for this segment.
  const Deadline& deadline() const { return deadline_; }
  /// Lane that was asked last; at first the owner's.
  std::uint16_t holder() const { return holder_; }
  /// Readable once an answer has arrived; -1 if none is awaited.
  int socket() const { return pending_ ? pending_->socket() : -1; }

  /// Sends the request, unless it is on its way. Whether its answer can be taken.
  bool is_answered();
  /// As os::PendingAnswer::answer. Afterwards the request can be sent again.
  std::optional<os::Exported> take();
  /// Says that the handle that was asked last does not have the memory.
  void refuse() { refused_.insert(holder_); }
  /// Asks another handle if the one that was asked last has gone or does not answer; false if there
  /// is nobody to ask.
  bool ask_on();

  /// Why the last mapping failed; empty if it did not.
  const std::string& failure() const { return failure_; }
  void set_failure(std::string why) { failure_ = std::move(why); }

 private:
  void ask(std::uint16_t holder);
  std::optional<std::uint16_t> find_holder() const noexcept;

  const Control& control_;
  const Lanes& lanes_;
  const os::Fd& folder_;
  std::string what_;
  std::uint32_t index_;
  SegmentWord word_;
  Deadline deadline_ = Deadline::in(kOwnerResponseS);
  std::uint16_t holder_;
  Deadline patience_ = deadline_;             // Then another handle is asked.
  std::optional<os::PendingAnswer> pending_;  // Empty if it has to be sent again.
  std::string failure_;
  std::set<std::uint16_t> refused_;  // Lanes that answered that they do not have it.
};

}  // namespace flowtrain::channel
