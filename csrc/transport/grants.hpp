#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <unordered_map>
#include <vector>

#include "transport/frame.hpp"

namespace flowtrain::transport {

/// Two processes that have admitted each other. It has at most one link in each direction; after a
/// link has ended, a new one needs a new session.
struct Session {
  std::uint64_t id;  ///< Not 0.
  Ticket ticket;
};

/// Right to write once into memory of another process.
struct Grant {
  std::uint64_t session;
  std::uint32_t slot;
  std::uint32_t generation;
  std::uint32_t region;
  std::uint64_t offset;
  std::uint64_t bytes;  ///< Maximum.
};

/// Bytes that have arrived in memory of this process.
struct Placement {
  Grant grant;
  std::uint64_t bytes;
  Header header;
};

/// Regions, sessions and grants of the process that owns the memory. Every transport asks it before
/// it writes, and tells it when all bytes have arrived: nothing that a peer sends is used
/// unchecked.
///
/// Memory:   max_grants slots, allocated at the start; sessions and regions by their number.
/// Threads:  one.
/// Progress: never waits. A slot is reused with the next generation, so that a grant that was used
///           or has ended stays refused.
/// Ordering: none.
/// Errors:   BadArgument for mistakes of this process; those of a peer are a Reason.
class GrantTable {
 public:
  explicit GrantTable(std::uint32_t max_grants);

  /// @returns Number of the region.
  std::uint32_t add_region(std::byte* data, std::uint64_t bytes);
  /// Ends a region, and its grants that are not being used. Its number may be given to another.
  void remove_region(std::uint32_t region);
  /// Null if there is no such region.
  std::byte* data_of(std::uint32_t region) const noexcept {
    return region < regions_.size() ? regions_[region].data : nullptr;
  }
  void admit(const Session& session);
  /// Ends a session and all its grants. Its link must not write any more.
  void dismiss(std::uint64_t session) noexcept;

  /// Whether a slot is free.
  bool can_grant() const noexcept { return !free_.empty(); }
  /// Nothing if all slots are in use.
  std::optional<Grant> grant(std::uint64_t session, std::uint32_t region, std::uint64_t offset,
                             std::uint64_t bytes);

  /// Opens the link of a session, once. Compares the ticket in constant time.
  Reason open(std::uint64_t session, const Header& ticket) noexcept;
  /// Destination of a payload, or why it is refused.
  struct Begun {
    Reason reason;
    std::byte* data;
  };
  Begun begin(const Frame& place) noexcept;
  /// All bytes of a payload that has begun are in place: its grant is used up.
  Placement finish(const Frame& place) noexcept;

 private:
  enum class State : std::uint8_t { kFree, kGranted, kReceiving };
  struct Slot {
    Grant grant{};
    State state = State::kFree;
    bool was_used = false;  // How the previous generation ended.
  };
  struct Region {
    std::byte* data;
    std::uint64_t bytes;
  };
  struct Admitted {
    Ticket ticket;
    bool is_open;
  };
  void end(Slot& slot, bool used) noexcept;

  std::vector<Slot> slots_;
  std::vector<std::uint32_t> free_;
  std::vector<Region> regions_;  // Without data: removed.
  std::unordered_map<std::uint64_t, Admitted> sessions_;
};

}  // namespace flowtrain::transport
