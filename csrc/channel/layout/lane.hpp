#pragma once

#include <atomic>
#include <cstdint>

#include "base/math.hpp"
#include "base/relaxed.hpp"
#include "channel/layout/segment_entry.hpp"
#include "lockfree/index_ring.hpp"
#include "os/process.hpp"

namespace flowtrain::channel {

/// kLeft: it ended cleanly. kDying: its process died, and recovery is under way. kDead: recovered.
enum class LaneState : std::uint32_t { kFree, kAlive, kLeft, kDying, kDead };
enum class LaneRole : std::uint32_t { kPool, kProducer, kConsumer };

/// A *lane* is the place of one participant in the control file: of a pool handle, a producer or a
/// consumer. The participant lives as long as its process holds the kernel's lock on the byte of
/// the control file that has the lane's number.
struct alignas(kCacheLine) Lane {
  lockfree::LaneIntent intent;
  std::atomic<LaneState> state;
  Relaxed<LaneRole> role;
  Relaxed<std::int32_t> pid;
  os::ProcessAge process;  ///< Tells this process from a later one with its pid.
  std::atomic<std::uint32_t> generation;
  Relaxed<std::uint32_t> retired;  ///< lanes_version when it ended; the oldest is reused first.
  RelaxedText label;
  Relaxed<std::uint16_t> ring;  ///< Of a producer or consumer.
  /// Of a pool handle: whether it is leaving, so that nobody can get memory from it for long. Also
  /// of a guest, which maps none.
  std::atomic<bool> leaving;
  // Counters, written only by the lane. They continue when the lane is reused, so that sums never
  // decrease.
  alignas(kCacheLine) std::atomic<std::uint64_t> items_published;
  std::atomic<std::uint64_t> bytes_published;
  std::atomic<std::uint64_t> items_taken;
  std::atomic<std::uint64_t> items_released;
  std::atomic<std::uint64_t> items_redelivered;
  std::atomic<std::uint64_t> items_lost;
  std::atomic<std::uint64_t> items_spilled;  ///< Not in the first segment of its tiers.
  std::atomic<std::uint64_t> bytes_spilled;
  /// Of a pool handle: the generation of each segment that it has mapped, by the segment's index; 0
  /// for none. Others get the memory from this handle once the segment's owner is gone. With
  /// kNotMapped: of a segment that it does not map, so that nobody waits for it.
  alignas(kCacheLine) std::atomic<std::uint32_t> mapped[kMaxSegments];
  static constexpr std::uint32_t kNotMapped = 1U << 16;
};

static_assert(sizeof(Lane) == 8 * kCacheLine);

}  // namespace flowtrain::channel
