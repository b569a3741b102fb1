#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "channel/item.hpp"
#include "channel/pool.hpp"
#include "channel/telemetry/recorder.hpp"

namespace flowtrain::channel {

/// Takes items from one ring.
///
/// Memory:   a lane of its own.
/// Threads:  any of its process; a mutex serializes them.
/// Progress: get waits while the ring is empty, with a deadline; try_get never waits. An item whose
///           memory its owner has not handed out yet is deferred: it goes to the end of the ring,
///           for any consumer. An item that is dropped and was not released goes there, too.
/// Ordering: as in IndexRing.
/// Errors:   throws; an expired deadline is PoolTimeout. A descriptor is checked before it is used;
///           an invalid one is PoolCorrupt, once, and its cell is released.
class Consumer : public std::enable_shared_from_this<Consumer> {
 public:
  /// @param strict  Throw StaleAddress for an item whose memory is gone. If false, such an item is
  ///                counted as lost and skipped.
  Consumer(std::shared_ptr<Pool> pool, const std::string& ring, bool strict = true,
           Recording recording = Recording::kOn);

  /// The next item; null only if `interrupted` ended the wait.
  std::shared_ptr<Item> get(const Deadline& deadline, const Interrupted& interrupted = {});
  /// The next item, or null if there is none now.
  std::shared_ptr<Item> try_get();
  /// Spins until the ring is not empty; false after the deadline. For waits too short for sleep.
  bool spin_until(const Deadline& deadline) const noexcept;
  /// The next 1 to `max_items` items; waits only for the first. None only if `interrupted` ended
  /// the wait.
  std::vector<std::shared_ptr<Item>> get_many(std::size_t max_items, const Deadline& deadline,
                                              const Interrupted& interrupted = {});
  /// The next items, at most `max_items`, or none if there is none now.
  std::vector<std::shared_ptr<Item>> try_get_many(std::size_t max_items);
  /// Ends taking, also in threads that wait. The lane is left when the last item is gone.
  void close();

  Pool& pool() const { return *pool_; }
  std::uint16_t lane() const { return lane_->number(); }
  std::uint16_t ring() const { return ring_; }
  bool strict() const { return strict_; }

 private:
  friend class Item;

  /// Items whose memory is awaited. The destructor puts them back into the ring.
  class Deferred {
   public:
    explicit Deferred(Consumer& consumer) : consumer_(consumer) {}
    ~Deferred() {
      for (const lockfree::Run& run : runs_) consumer_.put_back(run);
    }
    Deferred(const Deferred&) = delete;
    Deferred& operator=(const Deferred&) = delete;

    void add(std::uint32_t cell) { runs_.push_back({cell, 1}); }
    bool empty() const { return runs_.empty(); }

   private:
    Consumer& consumer_;
    std::vector<lockfree::Run> runs_;
  };

  bool closed() const;
  void check_open() const;
  lockfree::Run pop(std::size_t max_items);
  std::shared_ptr<Item> take(bool& awaited);
  std::vector<std::shared_ptr<Item>> take_many(std::size_t max_items, bool& awaited);
  std::shared_ptr<Item> open_first(const lockfree::Run& run, bool reported, Deferred& deferred);
  void put_back(const lockfree::Run& run);
  void push(const lockfree::Run& run) noexcept;
  bool wait_for_some(bool awaited, const Deadline& deadline, const Interrupted& interrupted);
  [[noreturn]] void throw_timeout(const Deadline& deadline) const;
  std::int64_t note_taken(std::uint32_t cell, const Descriptor& item) const noexcept;
  void note_released(std::uint32_t cell, const Descriptor& item,
                     std::int64_t taken_ns) const noexcept;
  void note_lost() const noexcept;
  void redeliver(std::uint32_t cell, const Descriptor& item) noexcept;
  std::string text() const;

  std::shared_ptr<Pool> pool_;
  std::uint16_t ring_;
  bool strict_;
  lockfree::IndexRing<> index_ring_;  ///< Of the ring, with this lane's position.
  std::unique_ptr<LaneHold> lane_;
  mutable Recorder recorder_;
  std::atomic<bool> closed_{false};
  os::Spin spin_;
  mutable std::mutex mutex_;
};

}  // namespace flowtrain::channel
