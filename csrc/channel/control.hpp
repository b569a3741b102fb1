#pragma once

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <optional>
#include <string>

#include "base/math.hpp"
#include "base/relaxed.hpp"
#include "channel/descriptor.hpp"
#include "channel/record.hpp"
#include "lockfree/free_map.hpp"
#include "lockfree/index_ring.hpp"
#include "os/event.hpp"
#include "os/mapping.hpp"

namespace flowtrain::channel {

inline constexpr std::uint64_t kMagic = 0x315f4c4f4f505446;  // "FTPOOL_1"
inline constexpr std::uint32_t kLayoutVersion = 9;
inline constexpr std::uint32_t kMaxSegments = 64;
inline constexpr std::uint32_t kMaxClasses = 64;

/// Sizes of a pool, fixed when it is created.
struct Geometry {
  std::uint32_t max_lanes;
  std::uint32_t max_cells;
  std::uint32_t num_rings;
  std::uint32_t ring_capacity;  ///< Power of two, at least max_cells: a push never waits.
};

/// First bytes of the control file. Magic and version stay where they are in every version, so that
/// a pool of another one is told from a damaged file.
struct Header {
  Relaxed<std::uint64_t> magic;
  Relaxed<std::uint32_t> version;
  std::atomic<std::uint32_t> ready;  ///< 1 once a pool can be opened.
  Geometry geometry;
  std::int32_t creator_pid;
  std::uint64_t nonce;
  std::atomic<std::uint32_t> num_cells;     ///< Cells below have belonged to a segment.
  std::atomic<std::uint32_t> num_segments;  ///< Entries below have been used.
  std::atomic<std::uint32_t> lanes_version;
  std::atomic<std::uint32_t> segments_version;
  os::Event space;  ///< A cell came free, or a segment was added.
};

/// kDying: the kernel dropped its lock, and what it held is being taken back.
enum class LaneState : std::uint32_t { kFree, kAlive, kLeft, kDying, kDead };
enum class LaneRole : std::uint32_t { kPool, kProducer, kConsumer };

/// A participant: a pool handle, a producer or a consumer. Its life is the kernel-held lock of
/// the byte of its number in the control file.
struct alignas(kCacheLine) Lane {
  lockfree::LaneIntent intent;
  std::atomic<LaneState> state;
  Relaxed<LaneRole> role;
  Relaxed<std::int32_t> pid;
  std::atomic<std::uint32_t> generation;
  Relaxed<std::uint32_t>
      retired;  ///< lanes_version when it left or died: the longest gone is reused.
  RelaxedText label;
  Relaxed<std::uint16_t> ring;  ///< Of a producer or consumer.
  // Counters, each written by the lane alone; they outlive it, so that sums never fall.
  alignas(kCacheLine) std::atomic<std::uint64_t> items_published;
  std::atomic<std::uint64_t> bytes_published;
  std::atomic<std::uint64_t> items_taken;
  std::atomic<std::uint64_t> items_released;
  std::atomic<std::uint64_t> items_redelivered;
  std::atomic<std::uint64_t> items_lost;
  std::atomic<std::uint64_t> items_spilled;  ///< Not in the first segment of its tiers.
  std::atomic<std::uint64_t> bytes_spilled;
};

/// kDraining: its owner is gone; what was published in it may still be read.
/// kDead: no cell of it is in use. It has no cells any more, and the entry may be used again, as
/// long as there is a generation that it has not had.
enum class SegmentState : std::uint8_t { kEmpty, kMaking, kLive, kDraining, kDead };

/// `[generation:32 | owner:16 | state:16]`: one compare-and-swap takes an entry together with its
/// owner, so that a half-made one is attributable. A generation has the bits of an address's.
using SegmentWord = std::uint64_t;

inline constexpr std::uint16_t kLastGeneration = UINT16_MAX;

constexpr SegmentWord segment_word(SegmentState state, std::uint16_t generation,
                                   std::uint16_t owner) {
  return std::uint64_t{generation} << 32 | std::uint64_t{owner} << 16 |
         static_cast<std::uint64_t>(state);
}
constexpr SegmentState state_of(SegmentWord word) { return static_cast<SegmentState>(word & 0xff); }
constexpr std::uint16_t generation_of(SegmentWord word) {
  return static_cast<std::uint16_t>(word >> 32);
}
constexpr std::uint16_t owner_of(SegmentWord word) {
  return static_cast<std::uint16_t>(word >> 16);
}
constexpr SegmentWord moved(SegmentWord word, SegmentState state) {
  return segment_word(state, generation_of(word), owner_of(word));
}
/// Whether the cells that an entry names are its own, see FreeRoom.
constexpr bool has_cells(SegmentWord word) {
  return state_of(word) != SegmentState::kEmpty && state_of(word) != SegmentState::kDead;
}

struct ClassEntry {
  Relaxed<std::uint64_t> slab_bytes;
  Relaxed<std::uint32_t> first;  ///< First cell of the class, counted over the pool.
  Relaxed<std::uint32_t> count;
};

/// A segment as every process finds it. Number = index + 1, since segment 0 is null.
struct alignas(kCacheLine) SegmentEntry {
  std::atomic<SegmentWord> word;
  Relaxed<std::uint32_t> first_cell;
  Relaxed<std::uint32_t> num_cells;
  Relaxed<std::uint32_t> num_classes;    ///< 0 where slabs are cut on demand, see Cutter.
  std::atomic<std::uint32_t> num_cut;    ///< Cells with a slab, where cut on demand.
  std::atomic<std::uint32_t> cut_epoch;  ///< Odd while the cuts are being undone.
  Relaxed<std::uint64_t> bytes;
  ClassEntry classes[kMaxClasses];
};

/// A cell besides its word: slab header and descriptor.
struct alignas(kCacheLine) Cell {
  Descriptor descriptor;
  Relaxed<memory::Address> slab;
  Relaxed<std::uint64_t> slab_bytes;
  Relaxed<std::uint32_t> attempt;   ///< Deliveries before this one.
  Relaxed<std::uint16_t> ring;      ///< Ring that it was published to, for redelivery.
  Relaxed<std::uint16_t> producer;  ///< Lane that leased it; not reused while the cell is in use.
  Relaxed<std::int64_t> published_ns;  ///< 0 for an item that is not timed.
};

/// A ring besides its slots.
struct alignas(kCacheLine) RingHeader {
  RelaxedText name;
  os::Event filled;
  lockfree::RingHints hints;
};

static_assert(kMaxSegments < std::uint64_t{1} << memory::kSegmentBits);
static_assert(sizeof(Lane) == 4 * kCacheLine && sizeof(Cell) == 2 * kCacheLine);
static_assert(sizeof(RingHeader) == 4 * kCacheLine);

/// Consecutive cells that are in the tables, from `first` up to and without `end`.
struct CellRange {
  std::uint32_t first;
  std::uint32_t end;
};

/// The control file, mapped: typed access to its tables, and nothing else.
///
/// Every process of the pool can write all of it, so that a number read from it is input: it is
/// read once, and held against the sizes in `geometry`, which are this handle's own copy, before
/// it becomes an index. `num_cells`, `num_segments`, `cells_of`, `label_of` and `ring_name` do so;
/// `lane`, `cell` and the like leave it to their caller.
///
/// Memory:   `header | lanes | records | segments | cell words | bits of full groups | cells | ring
///           headers | ring slots`; no pointers, every table on a cache line.
/// Threads:  any; each table says which of its words are shared.
/// Progress: plain address arithmetic.
/// Ordering: control.ready publishes the header to openers.
/// Errors:   PoolCorrupt where a file is not a pool of this version.
class Control {
 public:
  Control() = default;

  static std::uint64_t file_bytes(const Geometry& geometry);
  /// Writes the header of a new file of zeros; openers find it once `header().ready` is set.
  static Control make(const os::Fd& file, const std::string& path, const Geometry& geometry);
  /// The pool in a file, or nothing while its maker has not finished it.
  ///
  /// Errors: PoolCorrupt for a file of another version, or whose sizes cannot be.
  static std::optional<Control> find(const os::Fd& file, const std::string& path);

  Header& header() const { return *reinterpret_cast<Header*>(mapping_.data()); }
  const Geometry& geometry() const { return geometry_; }
  Lane& lane(std::uint32_t i) const { return at<Lane>(lanes_)[i]; }
  LaneRecord& record(std::uint32_t lane) const { return at<LaneRecord>(records_)[lane]; }
  SegmentEntry& segment(std::uint32_t i) const { return at<SegmentEntry>(segments_)[i]; }
  lockfree::AtomicCell& word(std::uint32_t i) const { return at<lockfree::AtomicCell>(words_)[i]; }
  Cell& cell(std::uint32_t i) const { return at<Cell>(cells_)[i]; }
  lockfree::FreeMap free_map() const {
    return {at<lockfree::FreeMap::Bits>(full_), at<lockfree::AtomicCell>(words_)};
  }
  RingHeader& ring_header(std::uint32_t i) const { return at<RingHeader>(rings_)[i]; }
  template <class Hooks = lockfree::NoHooks>
  lockfree::IndexRing<Hooks> ring(std::uint32_t i) const {
    return {&ring_header(i).hints,
            at<lockfree::AtomicSlot>(slots_) + std::uint64_t{i} * geometry_.ring_capacity,
            geometry_.ring_capacity, at<lockfree::AtomicCell>(words_), geometry_.max_cells};
  }
  /// Cells that have belonged to some segment; those beyond were never carved.
  std::uint32_t num_cells() const {
    return std::min(header().num_cells.load(std::memory_order_acquire),  // sync: control.num_cells
                    geometry_.max_cells);
  }
  std::uint32_t num_segments() const {
    return std::min(
        header().num_segments.load(std::memory_order_acquire),  // sync: control.num_segments
        kMaxSegments);
  }
  /// The cells of a segment.
  CellRange cells_of(const SegmentEntry& entry) const {
    const std::uint32_t all = num_cells();
    const std::uint32_t first = std::min<std::uint32_t>(entry.first_cell, all);
    return {first, first + std::min<std::uint32_t>(entry.num_cells, all - first)};
  }
  /// What a lane is called, in messages; "?" for one that there is not.
  std::string label_of(std::uint32_t i) const {
    return i < geometry_.max_lanes ? std::string(lane(i).label) : "?";
  }
  /// The same for a ring.
  std::string ring_name(std::uint32_t i) const {
    return i < geometry_.num_rings ? std::string(ring_header(i).name) : "?";
  }

  /// Gives a cell back and wakes who waits for space. Its lane must answer for it.
  void release_cell(std::uint32_t i) const noexcept {
    lockfree::release(word(i));
    // For searches, see FreeMap, and for those who wait, see Event.
    std::atomic_thread_fence(std::memory_order_seq_cst);
    free_map().note_free(i);
    header().space.notify_after_fence();
  }

 private:
  template <class T>
  T* at(std::uint64_t offset) const {
    return reinterpret_cast<T*>(mapping_.data() + offset);
  }
  std::uint64_t lay_out(const Geometry& geometry);

  os::Mapping mapping_;
  Geometry geometry_{};
  std::uint64_t lanes_ = 0, records_ = 0, segments_ = 0, words_ = 0, full_ = 0, cells_ = 0,
                rings_ = 0, slots_ = 0;
};

}  // namespace flowtrain::channel
