#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/deadline.hpp"
#include "channel/pool.hpp"

namespace flowtrain::channel {

/// What an item is: dtype and shape, at most four dimensions.
struct Layout {
  std::uint8_t dtype;
  std::uint8_t ndim;
  std::array<std::uint32_t, kMaxDims> shape;
  std::uint64_t bytes;
};

/// The caller's name of an item, 128 bits.
struct Key {
  std::uint64_t low;
  std::uint64_t high;
};

class Producer;

/// A slab being written: published once, or given back.
///
/// Memory:   one slab of the pool; keeps the pool mapped while it lives.
/// Threads:  one at a time.
/// Progress: publish is lock-free, abort wait-free.
/// Ordering: what was written before publish is seen by whoever takes the item.
/// Errors:   publishing twice throws PoolClosed.
class Lease {
 public:
  Lease(std::shared_ptr<Producer> producer, std::uint32_t cell, const Layout& layout,
        std::byte* data)
      : producer_(std::move(producer)), cell_(cell), layout_(layout), data_(data) {}
  ~Lease() { abort(); }
  Lease(const Lease&) = delete;
  Lease& operator=(const Lease&) = delete;

  std::byte* data() const { return data_; }
  const Layout& layout() const { return layout_; }
  memory::Address address() const;
  void publish(const Key& key);
  /// Gives the slab back unpublished; nothing happens after publish.
  void abort() noexcept;
  bool open() const { return open_; }

 private:
  std::shared_ptr<Producer> producer_;
  std::uint32_t cell_;
  Layout layout_;
  std::byte* data_;
  bool open_ = true;
};

/// Puts items into one ring.
///
/// Memory:   a lane of its own.
/// Threads:  one at a time.
/// Progress: lease blocks while no slab or credit is free, with a deadline; the rest does not.
/// Ordering: as in IndexRing.
/// Errors:   throws; a deadline that passes is PoolTimeout.
class Producer : public std::enable_shared_from_this<Producer> {
 public:
  /// Limits in flight: leased, published, and not yet given back by a reader.
  struct Credits {
    std::int64_t max_bytes = INT64_MAX;
    std::int64_t max_items = INT64_MAX;
  };

  Producer(std::shared_ptr<Pool> pool, const std::string& ring,
           std::optional<std::uint32_t> segment, const Credits& credits);

  /// A slab for an item; null only where `interrupted` ended the wait.
  std::shared_ptr<Lease> lease(const Layout& layout, double timeout_s,
                               const Interrupted& interrupted = {});
  /// Leaves the lane once the last lease is gone; leasing again throws PoolClosed.
  void close() { closed_ = true; }

  Pool& pool() const { return *pool_; }
  Lane& lane() const { return **lane_; }
  std::uint16_t lane_number() const { return lane_->number(); }
  std::uint16_t ring() const { return ring_; }

 private:
  std::optional<std::uint32_t> try_allocate(std::uint64_t bytes) noexcept;
  std::optional<std::uint32_t> try_segment(const SegmentEntry& entry,
                                           std::uint64_t bytes) noexcept;
  bool has_credit(std::uint64_t bytes) const noexcept;
  void check_size(std::uint64_t bytes) const;
  [[noreturn]] void throw_timeout(std::uint64_t bytes, double timeout_s) const;

  std::shared_ptr<Pool> pool_;
  std::unique_ptr<LaneHold> lane_;
  std::uint16_t ring_;
  std::optional<std::uint32_t> segment_;
  Credits credits_;
  bool closed_ = false;
  std::uint32_t hint_ = 0;
};

}  // namespace flowtrain::channel
