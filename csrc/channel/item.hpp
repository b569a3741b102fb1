#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>

#include "channel/layout/descriptor.hpp"
#include "channel/pool.hpp"
#include "channel/segments/segments.hpp"
#include "channel/views.hpp"
#include "lockfree/cell_word.hpp"

namespace flowtrain::channel {

class Consumer;

/// A published slab to be read, then released or given back, once.
///
/// Memory:   one slab of the pool, mapped while the item or a view of it lives.
/// Threads:  one at a time; views are counted from any thread.
/// Progress: release is wait-free, give_back lock-free.
/// Ordering: sees everything written before the item was published.
/// Errors:   releasing while views live throws ViewsAlive, releasing twice PoolClosed, releasing a
///           slab that another process has reused PoolCorrupt.
class Item {
 public:
  Item(std::shared_ptr<Consumer> consumer, std::uint32_t cell, const Descriptor& descriptor,
       std::int64_t taken_ns, SlabView view);
  /// Gives the item back unless it was released. Views hold the item, so none is left by now.
  ~Item();
  Item(const Item&) = delete;
  Item& operator=(const Item&) = delete;

  /// Null if the host cannot access the slab.
  const std::byte* data() const { return slab_.data; }
  const SlabView& slab() const { return slab_; }
  const Descriptor& descriptor() const { return descriptor_; }
  std::uint32_t cell() const { return cell_; }
  /// Of the cell: ends with the item.
  std::uint64_t generation() const { return lockfree::generation_of(word_); }
  /// Deliveries before this one.
  std::uint32_t attempt() const { return attempt_; }
  /// Label of the producer when the item was taken.
  const std::string& producer() const { return producer_; }
  bool open() const { return open_; }
  const Pool& pool() const;
  Views& views() { return views_; }
  /// Makes later work of a stream wait until the data is written. In memory of the host it is.
  ///
  /// Errors: as memory::StreamSteps.
  void wait(memory::StreamHandle stream);
  /// As wait, and names the default stream of release; kByHost only does the latter.
  void use_on(memory::StreamHandle stream);
  /// Frees the slab: the item is consumed.
  ///
  /// @param stream  Of the device, whose earlier work reads the slab; kByHost if that is complete.
  ///                By default that of the last wait or use_on, or else the host. Memory of the
  ///                host takes none.
  /// Errors: also StaleAddress if no stream waited, and the data is not written yet.
  void release(std::optional<memory::StreamHandle> stream = {});
  /// Checks, once the stream that waited has passed, that the data had been written. Also after
  /// release.
  ///
  /// Errors: StaleAddress if its producer died before that; BadArgument before the stream passed.
  void confirm() const;
  /// Puts the item back into its ring, for any consumer, as one more attempt, once it has no view:
  /// now, or in the thread that drops the last one.
  void give_back();

 private:
  bool holds_cell() const noexcept;
  void redeliver() noexcept;
  void finish_read(std::optional<memory::StreamHandle> stream);
  std::string text() const;

  std::shared_ptr<Consumer> consumer_;
  std::uint32_t cell_;
  lockfree::CellWord word_;  ///< Of the cell, until it is released.
  std::int64_t taken_ns_;
  Descriptor descriptor_;
  std::uint32_t attempt_;
  std::string producer_;
  SlabView slab_;
  Views views_;
  bool open_ = true;
  std::optional<memory::StreamHandle> stream_;  ///< That waited last.
};

}  // namespace flowtrain::channel
