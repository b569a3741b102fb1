#include "channel/segments/local_segments.hpp"

#include <utility>

namespace flowtrain::channel {

static_assert(kMaxSegments <= 64, "LocalSegments::mapped has one bit for each");

void LocalSegments::announce_in(std::uint16_t lane) {
  const std::lock_guard lock(mutex_);
  lane_ = lane;
}

std::optional<std::uint16_t> LocalSegments::lane() const {
  const std::lock_guard lock(mutex_);
  return lane_;
}

LocalSegments::Shared LocalSegments::find(std::uint32_t index,
                                          std::uint16_t generation) const noexcept {
  const std::lock_guard lock(mutex_);
  const Local& local = local_[index];
  return local.generation == generation ? local.memory : nullptr;
}

LocalSegments::Shared LocalSegments::find(std::uint32_t index) const noexcept {
  const std::lock_guard lock(mutex_);
  return local_[index].memory;
}

bool LocalSegments::is_mapped(std::uint32_t index, SegmentWord word) const noexcept {
  return (mapped() >> index & 1) != 0 &&
         generations_[index].load(std::memory_order_relaxed) == generation_of(word);
}

bool LocalSegments::store(std::uint32_t index, Shared memory, std::uint16_t generation) noexcept {
  Local local{std::move(memory), generation};  // Unmapped after the lock is released.
  const std::lock_guard lock(mutex_);
  const bool current = generation_of(table_.word(index)) == generation;
  if (current) exchange(index, local);
  return current;
}

void LocalSegments::drop_stale(std::uint32_t index) noexcept {
  Local dropped;  // Unmapped after the lock is released.
  const std::lock_guard lock(mutex_);
  const SegmentWord word = table_.word(index);
  const Local& local = local_[index];
  const bool dead = state_of(word) == SegmentState::kDead;
  if (local.memory && (dead || generation_of(word) != local.generation)) exchange(index, dropped);
}

std::array<LocalSegments::Shared, kMaxSegments> LocalSegments::take_all() noexcept {
  std::array<Shared, kMaxSegments> all;
  const std::lock_guard lock(mutex_);
  for (std::uint32_t i = 0; i < kMaxSegments; ++i) {
    Local dropped;
    exchange(i, dropped);
    all[i] = std::move(dropped.memory);
  }
  return all;
}

void LocalSegments::map_devices() noexcept {
  if (maps_devices_.exchange(true, std::memory_order_relaxed)) return;
  const std::lock_guard lock(mutex_);
  for (std::uint32_t i = 0; i < control_.num_segments(); ++i) {
    if (!is_skipped(i, table_.word(i))) continue;
    skipped_[i].store(0, std::memory_order_relaxed);
    announce(i, local_[i].generation);  // From now on, owners that close wait for this handle.
  }
}

void LocalSegments::skip(std::uint32_t index, SegmentWord word, Skip why) noexcept {
  const std::lock_guard lock(mutex_);
  if (why == Skip::kUntilUse && maps_devices()) return;
  if (is_skipped(index, word) || is_mapped(index, word)) return;
  skipped_[index].store(generation_of(word), std::memory_order_relaxed);
  announce(index, Lane::kNotMapped | generation_of(word));
}

bool LocalSegments::is_skipped(std::uint32_t index, SegmentWord word) const noexcept {
  return skipped_[index].load(std::memory_order_relaxed) == generation_of(word);
}

/// Under the lock. The caller unmaps the former content, then in `local`, without it.
void LocalSegments::exchange(std::uint32_t index, Local& local) noexcept {
  const std::uint64_t bit = std::uint64_t{1} << index;
  std::swap(local_[index], local);
  const std::uint64_t others = mapped() & ~bit;
  mapped_.store(local_[index].memory ? others | bit : others, std::memory_order_relaxed);
  const std::uint16_t generation = local_[index].generation;
  generations_[index].store(generation, std::memory_order_relaxed);
  announce(index, generation);
}

/// Under the lock.
void LocalSegments::announce(std::uint32_t index, std::uint32_t mapped) noexcept {
  if (!lane_) return;
  control_.lane(*lane_).mapped[index].store(mapped,
                                            std::memory_order_release);  // sync: lane.mapped
}

}  // namespace flowtrain::channel
