#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <string>

#include "channel/pool.hpp"

namespace flowtrain::channel {

class Consumer;

/// A published slab being read: given back once.
///
/// Memory:   one slab of the pool; keeps the pool mapped while it lives.
/// Threads:  one at a time; views count themselves in and out from any.
/// Progress: release is wait-free.
/// Ordering: sees what was written before the item was published.
/// Errors:   releasing while views live throws ViewsAlive, releasing twice PoolClosed.
class Item {
 public:
  Item(std::shared_ptr<Consumer> consumer, std::uint32_t cell, const Descriptor& descriptor,
       std::uint32_t attempt, const std::byte* data)
      : consumer_(std::move(consumer)),
        cell_(cell),
        descriptor_(descriptor),
        attempt_(attempt),
        data_(data) {}
  /// Gives the slab back if that was not done: views hold the item, so none is left by now.
  ~Item();
  Item(const Item&) = delete;
  Item& operator=(const Item&) = delete;

  const std::byte* data() const { return data_; }
  const Descriptor& descriptor() const { return descriptor_; }
  std::uint32_t attempt() const { return attempt_; }
  bool open() const { return open_; }
  void add_view() { views_.fetch_add(1, std::memory_order_relaxed); }
  void drop_view() { views_.fetch_sub(1, std::memory_order_relaxed); }
  void release();

 private:
  void give_back() noexcept;

  std::shared_ptr<Consumer> consumer_;
  std::uint32_t cell_;
  Descriptor descriptor_;
  std::uint32_t attempt_;
  const std::byte* data_;
  std::atomic<int> views_{0};
  bool open_ = true;
};

/// Takes items out of one ring.
///
/// Memory:   a lane of its own.
/// Threads:  one at a time.
/// Progress: get blocks while the ring is empty, with a deadline; try_get does not.
/// Ordering: as in IndexRing.
/// Errors:   throws; a deadline that passes is PoolTimeout.
class Consumer : public std::enable_shared_from_this<Consumer> {
 public:
  Consumer(std::shared_ptr<Pool> pool, const std::string& ring);

  /// The next item; null only where `interrupted` ended the wait.
  std::shared_ptr<Item> get(double timeout_s, const Interrupted& interrupted = {});
  /// The next item, or null if there is none now.
  std::shared_ptr<Item> try_get();
  void close() { closed_ = true; }

  Pool& pool() const { return *pool_; }
  Lane& lane() const { return **lane_; }

 private:
  void check_open() const;

  std::shared_ptr<Pool> pool_;
  std::uint32_t ring_;
  std::unique_ptr<LaneHold> lane_;
  bool closed_ = false;
};

}  // namespace flowtrain::channel
