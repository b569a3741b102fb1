#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "base/deadline.hpp"
#include "channel/layout/control.hpp"
#include "channel/liveness/lanes.hpp"
#include "channel/segments/device_streams.hpp"
#include "channel/segments/local_segments.hpp"
#include "channel/segments/memory_request.hpp"
#include "channel/segments/segment_table.hpp"
#include "channel/segments/unmapper.hpp"
#include "memory/carve.hpp"
#include "memory/resources.hpp"
#include "os/fd_socket.hpp"

namespace flowtrain::channel {

/// A slab, with the memory that it is in; null if that is not available.
struct SlabView {
  std::uint64_t address = 0;  ///< In the address space of the memory's place.
  std::byte* data = nullptr;  ///< Where the host can access it; otherwise null.
  std::shared_ptr<const memory::Memory> memory;
  bool awaited = false;  ///< Null only until the living owner hands out the memory.
  bool streams = false;  ///< In memory of a device: streams order its writes and reads.
  explicit operator bool() const { return memory != nullptr; }
};

/// Makes an object that lives as long as a memory, or null if that needs none; `what` names the
/// segment in errors.
using MemoryHook =
    std::function<std::shared_ptr<void>(const memory::Memory& memory, const std::string& what)>;

/// The segments that one handle has mapped: resolves global addresses.
///
/// Memory:   as memory::Memory. It lives as long as its segment, and beyond it as long as a view of
///           one of its slabs. The owner of a segment hands out its memory, and when the owner is
///           gone, every handle that has mapped it.
/// Threads:  any; a thread of its own hands out memory.
/// Progress: resolve takes a short lock. The first use of a segment sends its owner a request; only
///           map_all waits for the answer, with a deadline. A hook may take long. claim waits for
///           PoolLock::kAssignment, at most kLockTimeoutS. What a hook attached ends on a thread of
///           its own, see Unmapper; only close waits for it.
/// Ordering: segment.word publishes an entry.
/// Errors:   claim and make throw; a stale address resolves to nothing.
class Segments {
 public:
  /// @param folder     Of the pool; has the sockets of owners.
  /// @param resources  Of the kinds of memory that this process can use.
  Segments(const Control& control, Lanes& lanes, std::string pool, const os::Fd& folder,
           const memory::Resources& resources = memory::host_resources())
      : control_(control),
        lanes_(lanes),
        table_(control, lanes, pool),
        nonce_(control.header().nonce),
        pool_(std::move(pool)),
        folder_(folder),
        resources_(resources) {}

  /// Announces what is mapped here in the lane of this handle.
  void announce_in(std::uint16_t lane) { local_.announce_in(lane); }

  /// A segment that has cells, but no memory yet.
  struct Claim {
    std::uint32_t index;
    SegmentWord word;
    memory::Place place;
  };
  /// Claims a segment for `owner`; nothing if `interrupted` ended the wait. Producers wait for a
  /// claimed segment until it is made, or its owner dies.
  std::optional<Claim> claim(const memory::Carving& carving, std::uint16_t owner,
                             const Interrupted& interrupted, const memory::Place& place = {});
  /// Makes the memory of a claimed segment.
  ///
  /// @param interrupted  Ends the prefault. May close this handle, or fork.
  /// @returns Number of the segment; 0 if `interrupted` ended the prefault.
  std::uint32_t make(const Claim& claim, const memory::Carving& carving, bool prefault,
                     const Interrupted& interrupted = {});
  SlabView resolve(memory::Address address, std::uint64_t bytes);
  /// Maps the memory that owners have handed out, sends requests for new segments, and drops dead
  /// ones; false while an answer is missing. A mapped segment outlives its owner, so this is done
  /// early, but for a device's memory only after map_devices.
  bool refresh() noexcept;
  /// Says that the process uses a device's memory, so that it is mapped early. Otherwise only the
  /// first use of one of its slabs maps it: a context on the device takes hundreds of megabytes
  /// there, and what is forked afterwards cannot use the device.
  void map_devices() noexcept { local_.map_devices(); }
  /// Repeats refresh until the deadline, or until all missing answers are of owners that got their
  /// request kOwnerResponseS ago or earlier; false only if `interrupted` ended it.
  bool map_all(const Deadline& deadline, const Interrupted& interrupted);
  /// Sockets on which answers will arrive.
  std::vector<int> pending_sockets();
  /// One bit for each mapped segment, by its index. The bit stays set if the entry is reused, until
  /// the former segment is dropped.
  std::uint64_t mapped() const noexcept { return local_.mapped(); }
  /// Whether there is memory to be mapped early that is not.
  bool has_unmapped() const noexcept;
  /// Hands out memory whose owner is gone, if any is mapped here and no call is adding a segment.
  void serve_orphans() noexcept;
  /// The unmapped segments and the reasons, for messages; empty if all are mapped.
  std::string unmapped() const;

  /// As in SegmentTable.
  void drain(std::uint32_t number, std::uint16_t owner) { table_.drain(number, owner); }
  void drain_all(std::uint16_t owner) noexcept { table_.drain_all(owner); }
  void sweep() noexcept { table_.sweep(); }

  /// Calls `hook` for all present and future memory of this handle, and attaches its result by
  /// `key`. With a key that has a hook already this only makes up for memory that lacks the object.
  /// If the hook throws here, it is forgotten. If it throws for a later segment, the caller that
  /// adds or reads that segment gets the error, and `unmapped` names it.
  ///
  /// @return Bytes of the present memory.
  std::uint64_t attach(const std::string& key, MemoryHook hook);

  /// That of the kind of a slab's memory, which this handle has mapped.
  const memory::Resource& resource_for(const SlabView& slab) const {
    return *memory::resource_of(resources_, slab.memory->place().kind);
  }
  /// Enqueues the steps of the pool's stream words for slabs in such memory.
  DeviceStreams& streams() { return streams_; }

  /// Memory of a segment; null if this handle has not mapped it.
  std::shared_ptr<const memory::Memory> memory_of(std::uint32_t number) const {
    return local_.find(number - 1);
  }

  /// Unmaps all memory and waits for the end of what was attached to it. Memory with views stays
  /// until its last view ends. Afterwards claim, make and map throw PoolClosed.
  ///
  /// @param keep_devices  Whether to leave memory of devices mapped until the process ends, since
  ///                      streams still use it.
  void close(bool keep_devices = false);
  /// In a forked child: leaves memory and socket to the parent.
  void abandon() noexcept;

 private:
  static constexpr double kLockTimeoutS = 10.0;  ///< Others hold the lock for microseconds.

  enum class MapResult { kMapped, kAwaited, kGone };

  /// kEarly: before a slab of it is used.
  enum class When { kEarly, kAtUse };
  MapResult map(std::uint32_t index, When when);
  MapResult map(std::uint32_t index, SegmentWord word, MemoryRequest& request);
  const memory::Resource& usable_resource(std::uint32_t index, const memory::Place& place) const;
  bool may_answer() const;
  /// Under adding_mutex_ or mapping_mutex_. Throws PoolClosed after close.
  void check_open() const;
  void check_admitted() const;
  void call_hooks(const memory::Memory& memory, std::uint32_t index) const;
  bool admits_segments() const noexcept;
  void start_server(std::uint16_t lane);
  os::Exported serve(memory::Address segment);

  const Control& control_;
  Lanes& lanes_;
  SegmentTable table_;
  std::uint64_t nonce_;
  std::string pool_;
  const os::Fd& folder_;
  memory::Resources resources_;
  std::mutex adding_mutex_;  // Never held while another handle has a lock.
  mutable std::mutex mapping_mutex_;
  bool closed_ = false;                                    // Written under both.
  std::vector<std::pair<std::string, MemoryHook>> hooks_;  // By key; written under both.
  using Requests = std::array<std::optional<MemoryRequest>, kMaxSegments>;
  std::unique_ptr<Requests> requests_ = std::make_unique<Requests>();  // Under mapping_mutex_.
  LocalSegments local_{control_, table_};
  DeviceStreams streams_{control_, resources_, pool_};
  std::shared_ptr<Unmapper> unmapper_ = std::make_shared<Unmapper>();
  std::unique_ptr<os::FdServer> server_;
};

}  // namespace flowtrain::channel
