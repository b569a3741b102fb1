#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "transport/grants.hpp"
#include "transport/ucx/abi.hpp"

namespace flowtrain::transport::ucx {

/// Decides on messages of peers that have opened no session. UCX accepts every connection and
/// creates a reply endpoint for it. A peer with a valid ticket is accepted; any other gets a
/// refusal that gives no details.
///
/// Memory:   that of kMaxAnswers answers under way.
/// Threads:  that of the engine.
/// Progress: runs inside UCX callbacks: only there is a stranger's endpoint valid, since UCX
/// destroys
///           it without notice.
/// Ordering: none.
/// Errors:   none; what is refused is queued.
class Door {
 public:
  static constexpr std::size_t kMaxAnswers = 64;

  /// A peer that has opened a session.
  struct Guest {
    std::uint64_t session;
    std::string address;  ///< That it claims, unchecked.
    const Ep* from;
  };

  Door(const Calls& calls, GrantTable& grants) : calls_(calls), grants_(grants) {}
  Door(const Door&) = delete;
  Door& operator=(const Door&) = delete;

  void on_message(Ep* from, const void* header, std::size_t header_bytes, const void* data,
                  std::size_t bytes, bool announced) noexcept;

  std::vector<Guest> guests;    ///< Let in since the last look.
  std::vector<Reason> refused;  ///< Others, since the last look.

 private:
  Reason check(Ep* from, const Frame& frame, const void* data, std::size_t bytes, bool announced);
  void answer(Ep* stranger) noexcept;

  const Calls& calls_;
  GrantTable& grants_;
  std::size_t answers_ = 0;
};

}  // namespace flowtrain::transport::ucx
