#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "base/deadline.hpp"
#include "channel/cells/slab_allocator.hpp"
#include "channel/in_flight.hpp"
#include "channel/lease.hpp"
#include "channel/pool.hpp"
#include "channel/telemetry/recorder.hpp"

namespace flowtrain::channel {

/// Segments that a producer leases from, in order of preference. If empty: all segments, those of
/// its own handle first.
struct Tiers {
  Tiers(std::nullopt_t) {}
  Tiers(std::uint32_t only) : segments{only} {}
  Tiers(std::vector<std::uint32_t> in_order) : segments(std::move(in_order)) {}

  std::vector<std::uint32_t> segments;
};

/// Behavior of a producer without a free slab or credit.
enum class WhenFull { kBlock, kFail };

/// Leases slabs, and publishes them to one ring.
///
/// Memory:   a lane of its own.
/// Threads:  any of its process; a mutex serializes them.
/// Progress: lease waits until a slab and credit are free, and drain until all items are released,
///           each with a deadline; the rest never waits.
/// Ordering: as in IndexRing.
/// Errors:   throws; an expired deadline is PoolTimeout.
class Producer : public std::enable_shared_from_this<Producer> {
 public:
  /// Limits of what is in flight: leased or published, and not released by a reader.
  struct Credits {
    std::int64_t max_bytes = INT64_MAX;
    std::int64_t max_items = INT64_MAX;
    WhenFull when_full = WhenFull::kBlock;
    bool strict = false;  ///< Fail instead of spilling out of the first tier.
  };

  struct Spilled {
    std::uint64_t items;
    std::uint64_t bytes;
  };
  /// Since this producer was made, for explanations of its edge.
  struct Usage {
    std::int64_t items_in_flight;
    std::int64_t bytes_in_flight;
    Recorder::Written written;
    Spilled spilled;
  };

  Producer(std::shared_ptr<Pool> pool, const std::string& ring, const Tiers& tiers,
           const Credits& credits, Recording recording = Recording::kOn);
  ~Producer() { lane_.reset(); }  // Before mutex_.

  /// Leases a slab if one is free in memory that is mapped, or that its owner has handed out; else
  /// returns null.
  std::shared_ptr<Lease> try_lease(const Layout& layout);
  /// Leases a slab; null only if `interrupted` ended the wait.
  std::shared_ptr<Lease> lease(const Layout& layout, const Deadline& deadline,
                               const Interrupted& interrupted = {});
  /// Publishes leases in the given order; all of them, or none if one cannot be published. Leases
  /// of consecutive cells, as cells leased together mostly are, take one compare-and-swap together.
  ///
  /// @param stream  As of Lease::publish.
  void publish_many(std::span<const std::shared_ptr<Lease>> leases, std::span<const Key> keys,
                    std::optional<memory::StreamHandle> stream = {});
  /// Waits until no item of this producer is in flight: readers have released all that it has
  /// published. Returns false only if `interrupted` ended the wait.
  bool drain(const Deadline& deadline, const Interrupted& interrupted = {});
  /// Ends leasing, also in threads that wait. The lane is left when the last lease is gone.
  void close();

  Pool& pool() const { return *pool_; }
  std::uint16_t lane() const { return lane_->number(); }
  std::uint16_t ring() const { return ring_; }
  const std::vector<std::uint32_t>& tiers() const { return tiers_; }
  const Credits& credits() const { return credits_; }
  Usage usage();

 private:
  friend class Lease;

  /// A lease with its key, to be published.
  struct Publication {
    LeasedCell leased;
    Layout layout;
    Key key;
    std::uint32_t generation;  ///< Of the slab's stream words.
  };

  /// The resource that a lease waits for.
  enum class Missing { kCredit, kSlab };
  struct Attempt {
    std::optional<LeasedCell> leased;
    Missing missing;  ///< If nothing was leased.
  };

  /// Leases a cell of a mapped segment.
  ///
  /// @param since  Set when the caller began to wait; null if it does not wait.
  Attempt try_lease_cell(std::uint64_t bytes, const Deadline* since) noexcept;
  /// Returns null, and releases the cell, if its segment is not mapped. This happens if the segment
  /// reuses the entry of a segment that was mapped.
  std::shared_ptr<Lease> make_lease(const LeasedCell& leased, const Layout& layout);
  std::uint32_t try_allocate(std::uint64_t bytes) noexcept;
  bool fails_at_once(Missing missing) const noexcept;
  Spilled spilled() const noexcept;
  void check_mine(const LeasedCell& leased) const;
  void publish(std::span<const Publication> publications);
  void describe(const Publication& publication, std::uint64_t sequence) noexcept;
  void shrink(const LeasedCell& leased, std::uint64_t bytes);
  void abort(const LeasedCell& leased, std::uint64_t bytes) noexcept;
  bool is_mine(const LeasedCell& leased) const noexcept;
  bool closed() const;
  void check_open() const;
  bool leases_from(std::uint32_t segment) const noexcept;
  bool leases_from_devices() const noexcept;
  std::uint64_t largest_slab() const noexcept;
  void check_size(std::uint64_t bytes) const;
  std::string shortage(std::uint64_t bytes, Missing missing) const;
  std::string text() const;
  [[noreturn]] void throw_full(std::uint64_t bytes, Missing missing) const;
  [[noreturn]] void throw_timeout(std::uint64_t bytes, Missing missing, double waited_s) const;

  std::shared_ptr<Pool> pool_;
  std::unique_ptr<LaneHold> lane_;  ///< Has a pointer to mutex_.
  std::uint16_t ring_;
  std::vector<std::uint32_t> tiers_;
  std::optional<SlabAllocator> slabs_;
  lockfree::IndexRing<> index_ring_;  ///< Of the ring, with this lane's position.
  Credits credits_;
  Recorder recorder_;
  Spilled spilled_before_{};  ///< The lane's counters when this producer joined.
  std::atomic<bool> closed_{false};
  os::Spin spin_;
  mutable std::mutex mutex_;
  InFlight in_flight_;  ///< Under mutex_.
};

}  // namespace flowtrain::channel
