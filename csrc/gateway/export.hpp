#pragma once

#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <unordered_map>
#include <utility>
#include <vector>

#include "channel/consumer.hpp"
#include "channel/pool.hpp"
#include "gateway/message.hpp"
#include "gateway/peer.hpp"
#include "gateway/stagings.hpp"
#include "transport/transport.hpp"

namespace flowtrain::gateway {

/// The items of this pool whose readers are at one peer.
///
/// Takes them from their rings, and keeps each until a reader there has released its copy: so the
/// slab and the credit of a producer return when they would on one host, and what is lost with a
/// link, or with the peer, is still here.
///
///   (staging ->) taken -> wanted -> placing -> held, then released
///
/// Staging: being written to memory of a device, or copied from there to the host. Taken: to be
/// asked for over this link. Wanted: asked for. Placing: on its way to the peer. Held: published
/// there. A new link begins with `taken`: the peer knows what it has. A replacement process does
/// not know. What its predecessor acknowledged is already in the peer's pool, so it is released
/// here.
///
/// Memory:   the slabs that it has taken, one entry for each.
/// Threads:  one.
/// Progress: never waits. If it is destroyed, or its process dies, its items go back to the rings.
/// Ordering: none between items.
/// Errors:   BrokenRule for what the peer may not send; otherwise as Consumer and memory::Staging.
class Export {
 public:
  Export(std::shared_ptr<channel::Pool> pool, Stagings& stagings)
      : pool_(std::move(pool)), stagings_(stagings) {}

  /// Takes the items of one more ring, which has this number here and there.
  void add_ring(std::uint16_t ring);
  const std::vector<std::uint16_t>& rings() const { return rings_; }

  /// A link to the peer has opened, of this session.
  void begin(std::shared_ptr<transport::Link> link, std::uint64_t session, Since since);
  /// It has ended: no payload is read any more.
  void end();

  void on_granted(const Granted& granted);
  void on_told(const Told& told);
  void on_acknowledged(std::uint64_t number);

  /// Takes and sends. Returns whether anything was done.
  bool progress();
  /// Tells the peer of segments that have ended.
  void sweep();

  struct Counts {
    std::uint64_t items = 0;
    std::uint64_t bytes = 0;
    std::uint64_t staged_items = 0;  ///< Copied from a device to the host first.
    std::uint64_t lost = 0;          ///< Of producers that died before their stream wrote them.
    std::size_t unreleased = 0;
  };
  Counts counts() const;

 private:
  enum class State : std::uint8_t { kStaging, kTaken, kWanted, kPlacing, kHeld };
  struct Entry {
    std::shared_ptr<channel::Item> item;
    std::uint16_t ring;
    State state = State::kTaken;
    bool is_acknowledged = false;
    bool is_released = false;  // There, while the acknowledgement is on its way.
    Granted grant{};           // While the link has no room for the payload.
    std::shared_ptr<SegmentStaging> staging = nullptr;  // Null if the host can read the item.
    std::uint64_t fetch = 0;                            // Into the staging.
  };

  bool take();
  bool finish_staging();
  void announce(SourceId source);
  bool send();
  bool want(std::uint32_t cell, const Entry& entry);
  bool place(std::uint32_t cell, Entry& entry);
  Entry* find(const Name& item);
  void release(std::uint32_t cell);

  std::shared_ptr<channel::Pool> pool_;
  Stagings& stagings_;
  std::vector<std::uint16_t> rings_;
  std::vector<std::shared_ptr<channel::Consumer>> consumers_;  // Of these rings.
  std::shared_ptr<transport::Link> link_;
  std::uint64_t session_ = 0;
  std::unordered_map<std::uint32_t, Entry> entries_;     // By cell.
  std::map<SourceId, std::vector<SourcePart>> sources_;  // Without parts: it has ended.
  std::deque<transport::Header> announcements_;
  std::deque<std::uint32_t> staging_;
  std::deque<std::uint32_t> taken_;
  std::deque<std::uint32_t> granted_;                         // With a grant and without room.
  std::unordered_map<std::uint64_t, std::uint32_t> placing_;  // Cells, by number of the placement.
  Counts counts_;
};

}  // namespace flowtrain::gateway
