#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "base/deadline.hpp"
#include "channel/control.hpp"
#include "channel/free_room.hpp"
#include "channel/lanes.hpp"
#include "channel/unmapper.hpp"
#include "memory/carve.hpp"
#include "os/fd_socket.hpp"
#include "os/mapping.hpp"

namespace flowtrain::channel {

/// How long those who may wait are held up by owners of memory who do not answer at once; from then
/// on they go on with the memory that is mapped.
inline constexpr double kOwnersAnswerS = 0.1;

/// Memory of a slab with what keeps it mapped; null where it cannot be had.
struct SlabView {
  std::byte* data = nullptr;
  std::shared_ptr<const os::Mapping> keep;
  bool awaited = false;  ///< Null only until the owner, who lives, hands the memory over.
  explicit operator bool() const { return data != nullptr; }
};

/// Makes what is to live as long as a mapping; `what` names the segment in errors.
using MappingHook =
    std::function<std::shared_ptr<void>(const os::Mapping& mapping, const std::string& what)>;

/// The pool's segments as one handle sees them: the table that resolves global addresses.
///
/// Memory:   sealed memfds. A mapping lives as long as the segment, and beyond it as long as a
///           view of one of its slabs.
/// Threads:  any; a thread of its own serves the memory of segments made here to other handles.
/// Progress: resolve takes a short lock. The first use of a segment asks its owner for it; nobody
///           waits for the answer but map_all, which has a deadline. A hook may take its time. add
///           waits for whoever cuts slabs or adds a segment, at most kCarveSeconds. What a hook
///           attached ends on a thread of its own, see Unmapper; only close waits for it.
/// Ordering: segment.word publishes an entry.
/// Errors:   making a segment throws; a stale address resolves to nothing.
class Segments {
 public:
  /// @param folder  The pool's, where the sockets are.
  Segments(const Control& control, Lanes& lanes, std::string pool, const os::Fd& folder)
      : control_(control),
        lanes_(lanes),
        nonce_(control.header().nonce),
        pool_(std::move(pool)),
        folder_(folder) {}

  /// Makes a segment that `owner` owns. Returns its number, or 0 if `interrupted` ended the wait.
  std::uint32_t add(const memory::Carving& carving, bool prefault, std::uint16_t owner,
                    const Interrupted& interrupted = {});
  SlabView resolve(memory::Address address, std::uint64_t bytes);
  /// Maps what owners have handed over, asks for what was added since, and lets go of what is dead;
  /// false while an answer is missing. A segment outlives its owner wherever it is mapped, so this
  /// is done early.
  bool refresh() noexcept;
  /// Does so until the deadline, or no answer is missing but of owners who were asked
  /// kOwnersAnswerS ago or before; false only where `interrupted` ended it.
  bool map_all(const Deadline& deadline, const Interrupted& interrupted);
  /// Sockets on which answers come.
  std::vector<int> asked();
  /// One bit for each segment that is mapped, by its index; also while its entry is in use again
  /// and the mapping that is not yet dropped is that of the former segment.
  std::uint64_t mapped() const noexcept { return mapped_.load(std::memory_order_relaxed); }
  /// Whether there is memory that is not mapped.
  bool has_unmapped() const noexcept;
  /// Names the unmapped segments with the reason, for messages; empty if all are mapped.
  std::string unmapped() const;
  /// Nothing more is allocated in one segment of `owner`, or in all where the owner is gone;
  /// what was published stays.
  void drain(std::uint32_t number, std::uint16_t owner);
  void drain(std::uint16_t owner) noexcept;
  /// Ends those drained segments of which no cell is in use.
  void sweep() noexcept;

  /// Calls `hook` for every mapping that this handle has or will have, and attaches what it
  /// makes to the mapping; only the first hook counts. Where it throws here, it is
  /// forgotten; where it throws for a later segment, whoever adds or reads it hears of it, and
  /// whoever waits in vain for a slab of it, see unmapped.
  ///
  /// @return Bytes of the mappings there are.
  std::uint64_t attach(MappingHook hook);

  /// Whether this handle has mapped a segment, and attached something to the mapping.
  struct Held {
    bool mapped;
    bool attached;
  };
  Held held(std::uint32_t number) const;

  /// Unmaps all memory and waits for the end of what was attached to it; memory that is viewed
  /// stays until its last view ends. Afterwards add and map throw PoolClosed.
  void close();
  /// In a forked child: leave memory and socket to the parent.
  void abandon() noexcept;

 private:
  enum class Found { kMapped, kAwaited, kGone };

  /// A question to the owner of a segment.
  struct Question {
    std::uint16_t generation;
    Deadline patience;                     ///< Nobody waits for the owner alone after it.
    std::optional<os::PendingFd> request;  ///< None where it has to be asked again.
    std::string failure;                   ///< Why what was handed over was not mapped last time.
  };

  struct Slot {
    std::shared_ptr<const os::Mapping> mapping;
    std::uint16_t generation = 0;
    os::Fd fd;  ///< Only of segments made here.
  };

  static constexpr double kCarveSeconds = 10.0;  ///< The others need microseconds.

  std::optional<std::uint32_t> reserve(std::uint32_t cells, std::uint16_t owner,
                                       const Interrupted& interrupted);
  void take(const FreeRoom& room, std::uint32_t cells, std::uint16_t owner) noexcept;
  void fill(std::uint32_t index, const memory::Carving& carving);
  Found map(std::uint32_t index);
  Found map(std::uint32_t index, SegmentWord word, Question& question);
  bool may_answer() const;
  bool fill_slot(std::uint32_t index, Slot slot) noexcept;
  void drop_stale(std::uint32_t index) noexcept;
  /// Under slots_mutex_. What the slot held is then in `slot`, to be unmapped once the lock is
  /// given back.
  void exchange(std::uint32_t index, Slot& slot) noexcept;
  bool is_mapped(std::uint32_t index, SegmentWord word) const noexcept;
  bool in_use(const SegmentEntry& entry) const noexcept;
  /// Under adding_ or mapping_. Throws PoolClosed after close.
  void check_open() const;
  std::string text(std::uint32_t index) const;
  void call_hook(const os::Mapping& mapping, std::uint32_t index) const;
  std::string socket_of(std::uint16_t owner) const;
  os::Fd serve(memory::Address segment);

  const Control& control_;
  Lanes& lanes_;
  std::uint64_t nonce_;
  std::string pool_;
  const os::Fd& folder_;
  std::mutex adding_;
  mutable std::mutex mapping_;
  bool closed_ = false;                                          // Set under both.
  MappingHook hook_;                                             // Likewise.
  std::array<std::optional<Question>, kMaxSegments> questions_;  // Under mapping_.
  mutable std::mutex slots_mutex_;  // Never held while another process is asked.
  std::array<Slot, kMaxSegments> slots_;
  // Slots with a mapping, and their generations; written under slots_mutex_.
  std::atomic<std::uint64_t> mapped_{0};
  std::array<std::atomic<std::uint16_t>, kMaxSegments> generations_{};
  std::shared_ptr<Unmapper> unmapper_ = std::make_shared<Unmapper>();
  std::unique_ptr<os::FdServer> server_;
};

}  // namespace flowtrain::channel
