#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "channel/pool.hpp"
#include "channel/recorder.hpp"

namespace flowtrain::channel {

class Consumer;

/// A published slab being read: given back once.
///
/// Memory:   one slab of the pool, mapped while it or a view of it lives.
/// Threads:  one at a time; views count themselves in and out from any.
/// Progress: release is wait-free.
/// Ordering: sees what was written before the item was published.
/// Errors:   releasing while views live throws ViewsAlive, releasing twice PoolClosed, releasing
///           what another process has taken away PoolCorrupt.
class Item {
 public:
  Item(std::shared_ptr<Consumer> consumer, std::uint32_t cell, const Descriptor& descriptor,
       std::int64_t taken_ns, SlabView view);
  /// Gives the slab back if that was not done: views hold the item, so none is left by now.
  ~Item();
  Item(const Item&) = delete;
  Item& operator=(const Item&) = delete;

  const std::byte* data() const { return view_.data; }
  const Descriptor& descriptor() const { return descriptor_; }
  /// Deliveries before this one.
  std::uint32_t attempt() const { return attempt_; }
  /// Label of the producer, as it was when the item was taken.
  const std::string& producer() const { return producer_; }
  bool open() const { return open_; }
  const Pool& pool() const;
  void add_view() { views_.fetch_add(1, std::memory_order_relaxed); }
  void drop_view() { views_.fetch_sub(1, std::memory_order_release); }  // sync: item.views
  bool has_views() const;
  void release();

 private:
  bool is_mine() const noexcept;
  void give_back() noexcept;

  std::shared_ptr<Consumer> consumer_;
  std::uint32_t cell_;
  lockfree::CellWord word_;  ///< Of the cell while this holds it.
  std::int64_t taken_ns_;
  Descriptor descriptor_;
  std::uint32_t attempt_;
  std::string producer_;
  SlabView view_;
  std::atomic<int> views_{0};
  bool open_ = true;
};

/// Takes items out of one ring.
///
/// Memory:   a lane of its own.
/// Threads:  any of its process; they take turns.
/// Progress: get blocks while the ring is empty, with a deadline; try_get does not. An item whose
///           memory its owner has not handed over yet is passed over, and goes to the end of the
///           ring: this consumer, or another that has the memory mapped, meets it there.
/// Ordering: as in IndexRing.
/// Errors:   throws; a deadline that passes is PoolTimeout. A descriptor is checked before it is
///           used; one that cannot be is PoolCorrupt, once, and its cell is given back.
class Consumer : public std::enable_shared_from_this<Consumer> {
 public:
  /// @param strict  Throw StaleAddress for an item whose memory is gone, which else is counted as
  ///                lost and passed over.
  Consumer(std::shared_ptr<Pool> pool, const std::string& ring, bool strict = false,
           Recording recording = Recording::kOn);

  /// The next item; null only where `interrupted` ended the wait.
  std::shared_ptr<Item> get(const Deadline& deadline, const Interrupted& interrupted = {});
  /// The next item, or null if there is none now.
  std::shared_ptr<Item> try_get();
  /// Whether there is something, looking until the deadline; for waits too short to sleep in.
  bool spin_until(const Deadline& deadline) const noexcept;
  /// The next items, at least one and at most `most`, without waiting for more than the first;
  /// none only where `interrupted` ended the wait.
  std::vector<std::shared_ptr<Item>> get_many(std::size_t most, const Deadline& deadline,
                                              const Interrupted& interrupted = {});
  /// The next items, at most `most`, or none if there is none now.
  std::vector<std::shared_ptr<Item>> try_get_many(std::size_t most);
  /// Ends taking, also in threads that wait; the lane is left once the last item is gone.
  void close();

  Pool& pool() const { return *pool_; }
  std::uint16_t lane() const { return lane_->number(); }
  std::uint16_t ring() const { return static_cast<std::uint16_t>(ring_); }
  bool strict() const { return strict_; }

 private:
  friend class Item;

  /// Items that were passed over, until they are put back.
  class PassedOver {
   public:
    explicit PassedOver(Consumer& consumer) : consumer_(consumer) {}
    ~PassedOver() {
      for (const lockfree::Run& run : runs_) consumer_.put_back(run);
    }
    PassedOver(const PassedOver&) = delete;
    PassedOver& operator=(const PassedOver&) = delete;

    void add(std::uint32_t cell) { runs_.push_back({cell, 1}); }
    bool empty() const { return runs_.empty(); }

   private:
    Consumer& consumer_;
    std::vector<lockfree::Run> runs_;
  };

  bool closed() const;
  void check_open() const;
  lockfree::Run pop(std::size_t most);
  std::shared_ptr<Item> take(bool& awaited);
  std::vector<std::shared_ptr<Item>> take_many(std::size_t most, bool& awaited);
  std::shared_ptr<Item> open_first(const lockfree::Run& run, bool heard, PassedOver& passed_over);
  std::optional<std::string> fault(const Descriptor& item, std::uint32_t cell) const;
  void put_back(const lockfree::Run& run);
  bool wait_for_some(bool awaited, const Deadline& deadline, const Interrupted& interrupted);
  [[noreturn]] void throw_timeout(const Deadline& deadline) const;
  std::int64_t note_taken(std::uint32_t cell, const Descriptor& item) const noexcept;
  void note_released(std::uint32_t cell, const Descriptor& item,
                     std::int64_t taken_ns) const noexcept;
  void note_lost() const noexcept;
  std::string text() const;

  std::shared_ptr<Pool> pool_;
  std::uint32_t ring_;
  bool strict_;
  lockfree::IndexRing<> view_;  ///< Of that ring, as this lane sees it.
  std::unique_ptr<LaneHold> lane_;
  mutable Recorder recorder_;
  std::atomic<bool> closed_{false};
  os::Spin spin_;
  mutable std::mutex mutex_;
};

}  // namespace flowtrain::channel
