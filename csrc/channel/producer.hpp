#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "base/deadline.hpp"
#include "channel/pool.hpp"
#include "channel/recorder.hpp"
#include "channel/slabs.hpp"

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

/// A cell that was leased, its word while it is, and when, if it is timed.
struct Grant {
  std::uint32_t cell;
  lockfree::CellWord word;
  std::int64_t time_ns;
};

/// Segments that a producer leases from, in order of preference; any, those of its own handle
/// first, where there are none.
struct Tiers {
  Tiers(std::nullopt_t) {}
  Tiers(std::uint32_t only) : segments{only} {}
  Tiers(std::vector<std::uint32_t> in_order) : segments(std::move(in_order)) {}

  std::vector<std::uint32_t> segments;
};

/// What a producer without a slab or credit does.
enum class WhenFull { kBlock, kFail };

class Producer;

/// A slab being written: published once, or given back.
///
/// Memory:   one slab of the pool, mapped while it or a view of it lives.
/// Threads:  one at a time, but for a Writing, beside which others may run.
/// Progress: publish is lock-free, abort wait-free.
/// Ordering: what was written before publish is seen by whoever takes the item.
/// Errors:   publishing twice throws PoolClosed, publishing a slab that another process has taken
///           away PoolCorrupt; publishing or aborting during a Writing throws ViewsAlive.
class Lease {
 public:
  Lease(std::shared_ptr<Producer> producer, const Grant& grant, const Layout& layout, SlabView view)
      : producer_(std::move(producer)), grant_(grant), layout_(layout), view_(std::move(view)) {}
  ~Lease() { give_back(); }
  Lease(const Lease&) = delete;
  Lease& operator=(const Lease&) = delete;

  std::byte* data() const { return view_.data; }
  const Layout& layout() const { return layout_; }
  memory::Address address() const;
  void publish(const Key& key);
  /// Gives the slab back unpublished; does nothing after publish.
  void abort();
  bool open() const { return open_; }
  const Pool& pool() const;

  /// The slab is being written while one lives, so that it may not become another's.
  class Writing {
   public:
    explicit Writing(Lease& lease) : lease_(lease) {
      lease_.writers_.fetch_add(1, std::memory_order_relaxed);
    }
    ~Writing() { lease_.writers_.fetch_sub(1, std::memory_order_release); }  // sync: lease.writers
    Writing(const Writing&) = delete;
    Writing& operator=(const Writing&) = delete;

   private:
    Lease& lease_;
  };

 private:
  friend class Producer;

  /// Throws where it may not be published: after its end, and while it is written.
  void check_publishable(const std::string& what) const;
  void check_not_written(const std::string& what) const;
  void give_back() noexcept;

  std::shared_ptr<Producer> producer_;
  Grant grant_;
  Layout layout_;
  SlabView view_;
  std::atomic<int> writers_{0};
  bool open_ = true;
};

/// Puts items into one ring.
///
/// Memory:   a lane of its own.
/// Threads:  any of its process; they take turns.
/// Progress: lease blocks while no slab or credit is free, with a deadline; the rest does not.
/// Ordering: as in IndexRing.
/// Errors:   throws; a deadline that passes is PoolTimeout.
class Producer : public std::enable_shared_from_this<Producer> {
 public:
  /// Limits of what is in flight: leased, published, and not yet given back by a reader.
  struct Credits {
    std::int64_t max_bytes = INT64_MAX;
    std::int64_t max_items = INT64_MAX;
    WhenFull when_full = WhenFull::kBlock;
    bool strict = false;  ///< Fail where a lease would spill, which is to leave the first tier.
  };

  struct Spilled {
    std::uint64_t items;
    std::uint64_t bytes;
  };
  /// What this producer has done since it was made, for whoever asks about its edge.
  struct Usage {
    std::int64_t items_in_flight;
    std::int64_t bytes_in_flight;
    Recorder::Written written;
    Spilled spilled;
  };

  Producer(std::shared_ptr<Pool> pool, const std::string& ring, const Tiers& tiers,
           const Credits& credits, Recording recording = Recording::kOn);

  /// A slab for an item if one is free now in memory that is mapped, or was handed over by now,
  /// else null.
  std::shared_ptr<Lease> try_lease(const Layout& layout);
  /// A slab for an item; null only where `interrupted` ended the wait.
  std::shared_ptr<Lease> lease(const Layout& layout, const Deadline& deadline,
                               const Interrupted& interrupted = {});
  /// Publishes leases in the order given, all or, where one may not be, none. Those whose cells
  /// follow one another, as cells leased together mostly do, take one compare-and-swap together.
  void publish_many(std::span<const std::shared_ptr<Lease>> leases, std::span<const Key> keys);
  /// Ends leasing, also in threads that wait; the lane is left once the last lease is gone.
  void close();

  Pool& pool() const { return *pool_; }
  std::uint16_t lane() const { return lane_->number(); }
  std::uint16_t ring() const { return ring_; }
  const std::vector<std::uint32_t>& tiers() const { return tiers_; }
  const Credits& credits() const { return credits_; }
  Usage usage();

 private:
  friend class Lease;

  /// A lease on its way out.
  struct Parcel {
    Grant grant;
    Layout layout;
    Key key;
  };

  /// A cell that took up credit. Whether it was given back is looked up, by its generation, and
  /// not counted, so that no death can lose or double a credit.
  struct InFlight {
    std::uint32_t cell;
    std::uint64_t generation;
    std::int64_t bytes;
  };

  /// Resource that a lease lacks: a slab or credit.
  enum class Missing { kCredit, kSlab };
  struct Attempt {
    std::optional<Grant> grant;
    Missing missing;  ///< Where there is no grant.
  };

  /// A slab of a segment that is mapped.
  ///
  /// @param since  Where the caller had to wait; else it is an allocation without a wait.
  Attempt try_grant(std::uint64_t bytes, const Deadline* since) noexcept;
  /// Returns null, and gives the slab back, if its segment is not mapped: it took the entry of one
  /// that was. Until it is mapped, nothing is leased from it.
  std::shared_ptr<Lease> make_lease(const Grant& grant, const Layout& layout);
  std::uint32_t try_allocate(std::uint64_t bytes) noexcept;
  bool take_credit(std::uint64_t bytes) noexcept;
  bool has_credit(std::uint64_t bytes) const noexcept;
  void forget_given_back() noexcept;
  bool fails_at_once(Missing missing) const noexcept;
  Spilled spilled() const noexcept;
  void check_mine(std::span<const Parcel> parcels) const;
  void publish(std::span<const Parcel> parcels);
  void describe(const Parcel& parcel, std::uint64_t sequence) noexcept;
  void abort(const Grant& grant, std::uint64_t bytes) noexcept;
  bool is_mine(const Grant& grant) const noexcept;
  bool closed() const;
  void check_open() const;
  std::uint64_t largest_slab() const noexcept;
  void check_size(std::uint64_t bytes) const;
  struct Lack {
    std::string of;  ///< "slab" or "credit".
    std::string why;
  };
  Lack lack(Missing missing) const;
  std::string text() const;
  [[noreturn]] void throw_full(std::uint64_t bytes, Missing missing) const;
  [[noreturn]] void throw_timeout(std::uint64_t bytes, Missing missing, double waited_s) const;

  std::shared_ptr<Pool> pool_;
  std::unique_ptr<LaneHold> lane_;
  std::uint16_t ring_;
  std::vector<std::uint32_t> tiers_;
  std::optional<Slabs> slabs_;
  lockfree::IndexRing<> view_;  ///< Of that ring, as this lane sees it.
  std::optional<std::uint32_t> segment_;
  Credits credits_;
  Recorder recorder_;
  Spilled before_{};  ///< Counters of the lane, which outlive whoever had it before.
  std::atomic<bool> closed_{false};
  os::Spin spin_;
  mutable std::mutex mutex_;
  std::vector<InFlight> in_flight_;
  std::int64_t bytes_in_flight_ = 0;
};

}  // namespace flowtrain::channel
