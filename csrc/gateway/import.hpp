#pragma once

#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <set>
#include <unordered_map>
#include <vector>

#include "channel/pool.hpp"
#include "gateway/message.hpp"
#include "gateway/mirror.hpp"
#include "gateway/peer.hpp"
#include "transport/transport.hpp"

namespace flowtrain::gateway {

/// The items of one peer's pool, on their way to readers of this pool.
///
/// The peer wants an item, by its name; the answer depends on what became of that item here, and
/// not on the link: it may be placed now, it is here already, or a reader has released it. So the
/// peer asks again over a new link, and nothing is lost or arrives twice.
///
///   waiting -> granted -> held -> released
///
/// Waiting: for a slab, a grant, or the mirror of its segment. Granted: the peer may write into a
/// leased slab. Held: published, and not released by a reader. The end of a link forgets what is
/// waiting, and aborts what is granted.
///
/// Memory:   mirrors, and one entry for each cell of the peer's pool that has had an item.
/// Threads:  one.
/// Progress: never waits.
/// Ordering: an item is published after all its bytes arrived, and before the peer is told.
/// Errors:   BrokenRule for what the peer may not send; otherwise as Pool and Producer.
class Import {
 public:
  /// @param leads_away  By the number of a ring: whether its readers are elsewhere.
  /// @param max_cells   Of the peer's pool.
  Import(channel::Pool& pool, transport::Transport& transport, SegmentMaker& maker,
         const std::vector<bool>& leads_away, std::uint32_t max_cells);

  /// The peer may open a link to here, of this session.
  void begin(std::uint64_t session, Since since);
  /// A link to the peer takes answers.
  void connect(std::shared_ptr<transport::Link> link) { link_ = std::move(link); }
  /// Both have ended; the peer writes no more.
  void end();

  void on_source(const SourcePart& part);
  void on_gone(const Gone& gone);
  void on_want(const Want& want);
  void on_placed(const transport::Placement& placement);

  /// Finds released items, grants, and sends. Returns whether anything was done.
  bool progress();
  /// Whether a release of a slab in the pool may let it go on.
  bool awaits_space() const { return !held_.empty() || !waiting_.empty(); }

  struct Counts {
    std::uint64_t items = 0;
    std::uint64_t bytes = 0;
    std::size_t unreleased = 0;
    std::size_t waiting = 0;
    std::size_t mirrors = 0;
  };
  Counts counts() const;

 private:
  enum class State : std::uint8_t { kWaiting, kGranted, kHeld, kReleased };
  struct Entry {
    std::uint32_t generation;
    State state = State::kWaiting;
    bool is_answered = true;  // Whether it is not in answers_.
    std::uint16_t ring = 0;
    SourceId source = 0;
    std::uint64_t bytes = 0;
    std::shared_ptr<channel::Lease> lease{};  // While granted.
    transport::Grant grant{};
    std::uint32_t local_cell = 0;  // Of the held item.
    std::uint64_t local_generation = 0;
  };
  struct Source {
    std::vector<SourcePart> parts;  // By number; of source 0 until they have come.
    std::unique_ptr<Mirror> mirror;
  };

  void answer(std::uint32_t cell, Entry& entry);
  bool find_released();
  bool grant_waiting();
  bool try_grant(Entry& entry);
  bool send();

  channel::Pool& pool_;
  transport::Transport& transport_;
  SegmentMaker& maker_;
  const std::vector<bool>& leads_away_;
  std::uint32_t max_cells_;
  std::shared_ptr<transport::Link> link_;
  std::uint64_t session_ = 0;  // 0 for none.
  std::map<SourceId, Source> sources_;
  std::set<SourceId> gone_;  // Of this link: messages may overtake each other.
  // By the peer's cell, and the cells of it that are in one of the states.
  std::unordered_map<std::uint32_t, Entry> entries_;
  std::deque<std::uint32_t> waiting_;
  std::vector<std::uint32_t> held_;
  std::deque<std::uint32_t> answers_;
  Counts counts_;
};

}  // namespace flowtrain::gateway
