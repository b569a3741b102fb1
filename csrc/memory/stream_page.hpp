#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>

#include "base/math.hpp"

namespace flowtrain::memory {

/// Value of a slab's word: `[generation:32 | flags:32]`. A device compares 64 bits by the sign of
/// their difference, which with the generation in the upper half is the cyclic order of
/// generations: after the largest one comes 0. Poison is the generation's own, so that the next
/// generation of the slab is not affected.
using StreamWord = std::uint64_t;

inline constexpr StreamWord kPoison = 1;
/// Beside kPoison: whoever waited for the word knows that it was poisoned.
inline constexpr StreamWord kConfirmed = 2;

constexpr StreamWord stream_word(std::uint32_t generation) { return StreamWord{generation} << 32; }
constexpr std::uint32_t generation_of_word(StreamWord word) {
  return static_cast<std::uint32_t>(word >> 32);
}
/// Whether a stream that waits for the generation continues. Poison continues it, too.
constexpr bool has_reached(StreamWord word, std::uint32_t generation) {
  return static_cast<std::int64_t>(word - stream_word(generation)) >= 0;
}

/// State of a generation by the word of its slab. kStale: the word is at a later generation.
enum class Progress : std::uint8_t { kPending, kReached, kPoisoned, kStale };

/// The words of one slab. Streams store `written` and `read`. Hosts store `writer` and `reader`:
/// the lane that enqueued the write of each, `[generation:32 | lane:31 | submitted:1]`.
struct alignas(kCacheLine) SlabWords {
  std::atomic<StreamWord> written;
  std::atomic<StreamWord> read;
  std::atomic<std::uint64_t> writer;
  std::atomic<std::uint64_t> reader;
};
static_assert(sizeof(SlabWords) == kCacheLine);

/// Two words for each slab, by which the streams of several processes hand over slabs without a
/// host in between. A generation of a slab takes these steps:
///
///   1. The producer leases the slab once is_free holds, and its lease begins the generation, which
///      goes to the consumer with the descriptor.
///   2. Its stream writes the data, then `written`: cuda::publish_on. Then it pushes the
///      descriptor. So no process knows of the generation before that write was submitted, and
///      cuda::wait_written refuses to wait for one that was not. A wait that is submitted before
///      its write could block the write for ever, if both streams use one hardware queue.
///   3. The consumer's stream waits for `written`, gathers, then writes `read`: cuda::release_on.
///      The consumer frees the cell without waiting for its stream.
///
/// An aborted lease skips to `read`, on the producer's stream; if no stream has used the slab, it
/// leaves the generation to the next lease. Whoever frees a cell that was written and not read does
/// nothing else: is_free waits for the write, and the next lease skips it. A host whose own device
/// work has ended, or that uses no stream, replaces a write by finish_write or finish_read.
///
/// *Recovery.* Streams of a dead process write nothing any more, once the process has ended and its
/// contexts with it. A process that only lost its lock may still have work on the device: its lanes
/// must not be settled, nor its cells freed or redelivered, before it has ended. `settle` then
/// poisons each word that the dead lane had enqueued a write of, so no stream waits for ever.
/// Poison stays, so that a wait enqueued later passes as well; `settle` may be repeated. A consumer
/// calls `confirm` once its stream has passed the wait: it says whether the data had been written,
/// or the word was poisoned, and what was gathered is not the data. A slab with poison in `written`
/// is not reused before that, or before its consumer is settled. Poison in `read` frees the slab:
/// nobody reads it any more. A cell of a dead lane is freed if it was leased, or its generation was
/// read. Otherwise it is redelivered.
/// A lane whose process lives must not be left while it has_work: nobody would settle it.
///
/// Memory:   placed by the caller; holds no pointers, so any mapping may use it. Zeros are slabs
///           without a past. This object is a view of it.
/// Threads:  any, in any processes. A generation has one producer and one consumer at a time, by
///           its cell; one process at a time settles a lane.
/// Progress: wait-free; settle takes time linear in the slabs. A stream waits only for work that
///           was submitted before it, by a process that lives or is settled.
/// Ordering: stream.written and stream.read, whose other side may be a stream;
///           stream.writer publishes that a write was submitted.
/// Errors:   never throws. A step out of order is refused.
class StreamPage {
 public:
  StreamPage() = default;
  StreamPage(std::byte* data, std::uint32_t slabs)
      : words_(reinterpret_cast<SlabWords*>(data)), slabs_(slabs) {}

  static constexpr std::size_t bytes_for(std::uint32_t slabs) { return slabs * sizeof(SlabWords); }
  std::uint32_t slabs() const { return slabs_; }
  /// Words of a slab, at the same offset in every mapping.
  SlabWords& words(std::uint32_t slab) const { return words_[slab]; }

  /// View of some of the slabs, which are counted from 0 there.
  StreamPage part(std::uint32_t first, std::uint32_t slabs) const {
    StreamPage out;
    out.words_ = words_ + first;
    out.slabs_ = slabs;
    return out;
  }

  /// Prepares a slab for a next generation, before any other process may use the slab.
  void reset(std::uint32_t slab, std::uint32_t next) const noexcept;

  /// Whether the slab may be overwritten by a generation: the one before it was read, and not left
  /// poisoned.
  bool may_write(std::uint32_t slab, std::uint32_t generation) const noexcept;
  /// Whether a slab whose cell is free can be leased: its generation before was read, or written
  /// and will not be read.
  bool is_free(std::uint32_t slab) const noexcept;
  /// Begins a lease of a free slab. A generation that was written and not read is skipped.
  ///
  /// @returns The generation of the lease.
  std::uint32_t begin(std::uint32_t slab) const noexcept;
  /// Whether a stream of the lane has yet to write a word.
  bool has_work(std::uint32_t lane) const noexcept;
  /// Whether no stream has yet to write a word.
  bool is_idle() const noexcept;
  /// Whether settle has something to do for the lane: it has_work, or has not confirmed a poisoned
  /// slab.
  bool must_settle(std::uint32_t lane) const noexcept;
  Progress written(std::uint32_t slab, std::uint32_t generation) const noexcept;
  Progress read(std::uint32_t slab, std::uint32_t generation) const noexcept;
  /// Whether a write of `written` was submitted, so that a wait for it may be.
  bool write_submitted(std::uint32_t slab, std::uint32_t generation) const noexcept;

  /// Names the lane that is about to enqueue a write of `written`. Refused unless may_write holds
  /// and the generation was not written yet.
  bool begin_write(std::uint32_t slab, std::uint32_t generation, std::uint32_t lane) const noexcept;
  /// After the write was enqueued.
  void submitted_write(std::uint32_t slab, std::uint32_t generation,
                       std::uint32_t lane) const noexcept;
  /// Names the lane that is about to enqueue a write of `read`. Refused if this was done for the
  /// generation, or if the generation before was not read.
  bool begin_read(std::uint32_t slab, std::uint32_t generation, std::uint32_t lane) const noexcept;

  /// Undo begin_write and begin_read, if the write could not be enqueued.
  void cancel_write(std::uint32_t slab, std::uint32_t generation) const noexcept;
  void cancel_read(std::uint32_t slab, std::uint32_t generation) const noexcept;

  /// Whether the data was there when the consumer's stream passed its wait; false if poison let it
  /// pass. Call it after that, for each item: it allows a poisoned slab to be reused.
  bool confirm(std::uint32_t slab, std::uint32_t generation) const noexcept;

  /// Writes `written` from the host. As begin_write.
  bool finish_write(std::uint32_t slab, std::uint32_t generation) const noexcept;
  /// Writes `read` from the host, for an item whose `written` it has seen, or a lease that was not
  /// published. Refused while a stream has yet to write a word of the generation.
  bool finish_read(std::uint32_t slab, std::uint32_t generation) const noexcept;

  /// Ends what the streams of a lane have not done, after the lane's process has ended. False if a
  /// write of another lane comes first: repeat the call.
  bool settle(std::uint32_t lane) const noexcept;

 private:
  /// The generation after the one last read.
  std::uint32_t next(std::uint32_t slab) const noexcept;

  SlabWords* words_ = nullptr;
  std::uint32_t slabs_ = 0;
};

}  // namespace flowtrain::memory
