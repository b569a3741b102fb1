#pragma once

#include <cstdint>
#include <exception>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "base/deadline.hpp"
#include "channel/pool.hpp"
#include "gateway/export.hpp"
#include "gateway/import.hpp"
#include "gateway/peer.hpp"
#include "gateway/segment_maker.hpp"
#include "gateway/stagings.hpp"
#include "gateway/watch.hpp"
#include "os/fd.hpp"
#include "transport/transport.hpp"

namespace flowtrain::gateway {

/// Joins the pool of this host with those of others: items of rings whose readers are at a peer go
/// there, and appear in the same ring of the peer's pool. Producers and consumers only ever see
/// their own pool.
///
/// Invariants:
///   1. An item leaves its pool only after a reader of the other pool has released its copy, or
///      after the copy was acknowledged by a process that was replaced since. So no death and no
///      cut loses an item, as long as one of the two pools has a process; see Export and Import.
///   2. A slab of a mirror is leased only for an item that lies in a slab of the same class of its
///      source. So both pools run out of space where one would; see Mirror.
///   3. The answer to a Want depends on the name of the item alone. So a new link asks again, and
///      an item comes twice only if the process that received it was replaced before its
///      acknowledgement arrived.
///
/// The caller decides that a peer is dead, and calls `detach`. The end of a link detaches its peer,
/// too; `wait` returns it.
///
/// Memory:   of the pool: mirrors.
/// Threads:  any; one of them waits.
/// Progress: in wait and progress. A wait sleeps until a socket, a ring or the pool has something.
/// Ordering: none between items.
/// Errors:   those of the pool leave wait and progress, and end the gateway; what peers do is told.
///           PoolClosed in a forked child, where it cannot be destroyed: its threads and links are
///           the parent's.
class Gateway final : private transport::Receiver {
 public:
  using OpenTransport = std::function<std::unique_ptr<transport::Transport>(transport::Receiver&)>;
  Gateway(std::shared_ptr<channel::Pool> pool, const OpenTransport& open);
  ~Gateway() override;
  Gateway(const Gateway&) = delete;
  Gateway& operator=(const Gateway&) = delete;

  /// Ends all links, and gives the items for peers back to their rings. No peer is admitted
  /// afterwards.
  void close();

  /// Where peers connect to.
  std::string address() const { return transport_->address(); }
  /// Number of this process, for a peer. After `forget` it is another one: the peer may not expect
  /// this gateway to know what it has received before.
  std::uint64_t process(const std::string& peer);
  channel::Pool& pool() const { return *pool_; }

  /// Lets a peer open a link to here. The links of one of the same name end.
  void admit(const Peer& peer);
  /// Lets rings lead to a peer, which has their readers, beside those that do already. Each leads
  /// to one host, until the peer is forgotten.
  void route(const std::string& name, const std::vector<std::string>& rings);
  /// Opens the link to a peer that has admitted this gateway. Returns before it has answered; false
  /// if the peer's own link has ended already, which `wait` tells.
  bool connect(const std::string& name);
  /// Ends the links of a peer. What is unfinished goes on after its next `admit` and `connect`.
  void detach(const std::string& name);
  /// Gives the items for a peer back to their rings, and forgets it. Its items stay readable.
  void forget(const std::string& name);

  /// A link that has ended without a call.
  struct Ended {
    std::string peer;
    std::string why;
  };
  /// Waits until there is something to do, at most until the deadline, and does it. Returns the
  /// links that have ended since.
  std::vector<Ended> wait(const Deadline& deadline);
  /// Does what can be done without waiting. False if there was nothing to do.
  bool progress();
  /// Ends a wait.
  void wake() noexcept;

  struct Traffic {
    std::string peer;
    bool is_connected;
    std::int64_t stalled_ns;  ///< As Link::stalled_ns.
    Export::Counts out;
    Import::Counts in;
  };
  std::vector<Traffic> traffic();
  /// The path, its links and its traffic, for people.
  std::string explain();

 private:
  struct Connection {
    Peer peer;
    bool is_admitted = false;
    Since since = Since::kNew;
    std::shared_ptr<transport::Link> link;  // Null unless it is connected.
    std::unique_ptr<Export> out;
    std::unique_ptr<Import> in;
    std::string ended;  // Why, until the links are closed.
  };

  void on_placed(const transport::Placement& placement) override;
  void on_message(std::uint64_t session, const transport::Header& header) override;
  void on_refused(const transport::Refusal& refusal) override;
  void on_acknowledged(std::uint64_t session, std::uint64_t number) override;
  void on_closed(std::uint64_t session, const std::string& why) override;

  std::unique_lock<std::mutex> locked();
  void dispatch(Connection& from, const transport::Header& header);
  template <class Action>
  void guarded(Connection& connection, Action&& action) noexcept;
  Connection* find(std::uint64_t session);
  void open_route(Connection& to, std::uint16_t ring);
  void close_links(Connection& connection);
  void end(Connection& connection, const std::string& why);
  bool progress_all();
  void arm();

  std::shared_ptr<channel::Pool> pool_;
  std::map<std::string, std::uint64_t> processes_;  // By the peer's name.
  os::Fd wakes_;
  std::mutex mutex_;
  std::unique_ptr<transport::Transport> transport_;
  Stagings stagings_;
  SegmentMaker maker_;
  std::vector<bool> leads_away_;                   // By the number of a ring: to another host.
  std::map<std::string, Connection> connections_;  // By the peer's name.
  std::vector<Ended> ended_;
  std::exception_ptr failure_;
  bool is_closed_ = false;
  std::int64_t swept_ns_ = 0;
  std::unique_ptr<Watch> space_;
  std::map<std::uint16_t, std::unique_ptr<Watch>> filled_;  // By ring.
};

}  // namespace flowtrain::gateway
