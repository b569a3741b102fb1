#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>

#include "channel/segments/segment_table.hpp"
#include "memory/resource.hpp"

namespace flowtrain::channel {

/// The segments that one handle has mapped, which it announces in its lane.
///
/// Memory:   shares that of the segments.
/// Threads:  any.
/// Progress: short locks; the present state is read without one.
/// Ordering: lane.mapped publishes what is mapped to other handles. Under the lock, the word of an
///           entry is at least as new as what is mapped of it.
/// Errors:   never throws.
class LocalSegments {
 public:
  using Shared = std::shared_ptr<const memory::Memory>;

  LocalSegments(const Control& control, const SegmentTable& table)
      : control_(control), table_(table) {}

  /// Announces what is mapped in this lane from now on.
  void announce_in(std::uint16_t lane);
  std::optional<std::uint16_t> lane() const;

  /// Memory of a segment by its generation; null if that one is not mapped.
  Shared find(std::uint32_t index, std::uint16_t generation) const noexcept;
  /// Memory of a segment, perhaps of a former one.
  Shared find(std::uint32_t index) const noexcept;
  /// As Segments::mapped.
  std::uint64_t mapped() const noexcept { return mapped_.load(std::memory_order_relaxed); }
  /// Whether the present segment of an entry is mapped, and not only a former one.
  bool is_mapped(std::uint32_t index, SegmentWord word) const noexcept;

  /// Stores a mapping, unless its entry was reused meanwhile; returns whether it is stored.
  bool store(std::uint32_t index, Shared memory, std::uint16_t generation) noexcept;
  /// Drops the mapping of a dead segment, also if its entry was reused.
  void drop_stale(std::uint32_t index) noexcept;
  /// Takes out all mappings.
  std::array<Shared, kMaxSegments> take_all() noexcept;

  /// As Segments::map_devices.
  void map_devices() noexcept;
  bool maps_devices() const noexcept { return maps_devices_.load(std::memory_order_relaxed); }
  /// kUntilUse: unless map_devices was called meanwhile.
  enum class Skip { kUntilUse, kUnreachable };
  /// Says that a segment is not mapped early.
  void skip(std::uint32_t index, SegmentWord word, Skip why) noexcept;
  bool is_skipped(std::uint32_t index, SegmentWord word) const noexcept;

 private:
  struct Local {
    Shared memory;
    std::uint16_t generation = 0;
  };

  void exchange(std::uint32_t index, Local& local) noexcept;
  void announce(std::uint32_t index, std::uint32_t mapped) noexcept;

  const Control& control_;
  const SegmentTable& table_;
  mutable std::mutex mutex_;           // Never held while another process is asked.
  std::optional<std::uint16_t> lane_;  // Of this handle.
  std::array<Local, kMaxSegments> local_;
  std::atomic<bool> maps_devices_{false};
  // Segments with a mapping, and their generations; written under the lock.
  std::atomic<std::uint64_t> mapped_{0};
  std::array<std::atomic<std::uint16_t>, kMaxSegments> generations_{};
  // Generations of segments that are not mapped early; written under the lock.
  std::array<std::atomic<std::uint16_t>, kMaxSegments> skipped_{};
};

}  // namespace flowtrain::channel
