#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>

#include "channel/layout/descriptor.hpp"
#include "channel/pool.hpp"
#include "channel/segments/segments.hpp"
#include "channel/views.hpp"
#include "lockfree/cell_word.hpp"

namespace flowtrain::channel {

class Producer;

/// dtype and shape of an item, at most kMaxDims dimensions.
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

/// A leased cell.
struct LeasedCell {
  std::uint32_t cell;
  lockfree::CellWord word;  ///< Of the cell while it is leased.
  std::int64_t time_ns;     ///< Of the lease; 0 if it is not timed.
};

/// A slab to be written, then published once or released.
///
/// Memory:   one slab of the pool, mapped while the lease or a view of it lives.
/// Threads:  one at a time, except during a Writing, beside which other threads may run; views are
///           counted from any thread.
/// Progress: publish is lock-free, abort wait-free; shrink never waits.
/// Ordering: the taker of the item sees everything written before publish.
/// Errors:   publishing twice throws PoolClosed; publishing a slab that another process has reused
///           throws PoolCorrupt; publishing, shrinking or aborting during a Writing, or while a
///           view lives, throws ViewsAlive; more bytes than it has are a BadArgument.
class Lease {
 public:
  Lease(std::shared_ptr<Producer> producer, const LeasedCell& leased, const Layout& layout,
        SlabView view);
  ~Lease() { release(); }
  Lease(const Lease&) = delete;
  Lease& operator=(const Lease&) = delete;

  /// Null if the host cannot access the slab.
  std::byte* data() const { return slab_.data; }
  const SlabView& slab() const { return slab_; }
  const Layout& layout() const { return layout_; }
  memory::Address address() const;
  const LeasedCell& leased() const { return leased_; }
  /// Gives the item another layout, of at most as many bytes: the first ones of the slab. Where
  /// slabs are made on demand, the rest is free for others at once.
  void shrink(const Layout& layout);
  /// @param stream  Of the device, which has the work that writes the slab; kByHost if all writes
  ///                are complete. By default the stream of use_on, or else the host. Memory of the
  ///                host takes none.
  void publish(const Key& key, std::optional<memory::StreamHandle> stream = {});
  /// Releases the slab without publishing it. Does nothing after publish.
  ///
  /// @param stream  As of publish.
  void abort(std::optional<memory::StreamHandle> stream = {});
  /// Names the default stream of publish and abort.
  void use_on(memory::StreamHandle stream) { stream_ = stream; }
  bool open() const { return open_; }
  const Pool& pool() const;
  Views& views() { return views_; }

  /// While one lives the slab is being written, and cannot be published or aborted.
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

  /// Throws after publish or abort, and while it may be written. `what` names the lease in errors,
  /// `before` the call that is refused.
  void check_unused(std::string_view what, const char* before) const;
  void check_not_written(std::string_view what, const char* before) const;
  void release() noexcept;
  /// Writes `written`, or enqueues that, before the descriptor is pushed.
  void finish_write(std::optional<memory::StreamHandle> stream);
  /// Enqueues that the slab is free once the stream's work is done.
  void skip_to_read(std::optional<memory::StreamHandle> stream);

  std::shared_ptr<Producer> producer_;
  LeasedCell leased_;
  Layout layout_;
  SlabView slab_;
  std::atomic<int> writers_{0};
  Views views_;
  bool open_ = true;
  bool written_ = false;          ///< Whether `written` is written, or a write of it enqueued.
  std::uint32_t generation_ = 0;  ///< Of the slab's stream words.
  std::optional<memory::StreamHandle> stream_;
};

}  // namespace flowtrain::channel
