#pragma once

#include <array>
#include <cstdint>
#include <mutex>
#include <string>
#include <vector>

#include "channel/control.hpp"
#include "os/fd.hpp"

namespace flowtrain::channel {

/// What is told of a lane.
struct LaneInfo {
  std::uint32_t index;
  std::string label;
  LaneRole role;
  std::int32_t pid;
  LaneState state;
  std::uint32_t generation;
  std::uint16_t ring;  ///< Number of a producer's or consumer's.
};

/// The pool's participants as one handle sees them, and those it has put there itself.
///
/// Memory:   the lanes of the control file, and byte locks on it: one byte a lane, and behind
///           them one for each right.
/// Threads:  any; taking and leaving exclude each other within the handle.
/// Progress: no call waits for another process.
/// Ordering: lane.state publishes what a lane says of itself.
/// Errors:   PoolSpace when all lanes are taken.
class Lanes {
 public:
  Lanes(const Control& control, const os::Fd& file)
      : control_(control), file_(file), held_(control.geometry().max_lanes, false) {}

  std::uint16_t take(LaneRole role, std::uint16_t ring, const std::string& label,
                     const std::string& pool);
  /// Leaves cleanly; the lane stays visible until it is reused.
  void leave(std::uint16_t lane) noexcept;

  std::uint32_t size() const { return control_.geometry().max_lanes; }
  bool holds(std::uint32_t lane) const;
  /// Whether its process lives, by the kernel's word; false for a lane that there is not.
  bool is_alive(std::uint32_t lane) const noexcept;
  /// Whether its process died and nobody has begun to take back what it held.
  bool is_lost(std::uint32_t lane) const noexcept;
  LaneInfo info(std::uint32_t lane) const;
  /// Every lane that was ever used.
  std::vector<LaneInfo> all() const;

  /// Rights that one thread at a time has over all processes, and none after its process's death.
  /// kReap: to take back what the dead held. kCarve: to give cells to a segment, or slabs to cells.
  enum class Right : std::uint32_t { kReap, kCarve };
  bool try_take(Right right) noexcept;
  void give_back(Right right) noexcept;

 private:
  bool may_take(std::uint32_t lane) const;

  const Control& control_;
  const os::Fd& file_;
  mutable std::mutex mutex_;
  std::vector<bool> held_;
  std::array<bool, 2> rights_{};  // Those of this handle; a byte lock does not exclude its holder.
};

}  // namespace flowtrain::channel
