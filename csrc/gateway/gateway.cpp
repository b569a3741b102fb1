#include "gateway/gateway.hpp"

#include <poll.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <random>
#include <utility>

#include "base/clock.hpp"
#include "base/error.hpp"

namespace flowtrain::gateway {
namespace {

// Between looks at what has no event: segments that end, and other handles that map a mirror.
constexpr std::int64_t kSweepNs = 100'000'000;

/// Wakes, also after the gateway has ended: a copy that is under way may end later.
memory::OnDone waker_of(const os::Fd& wakes) {
  return [own = std::make_shared<const os::Fd>(os::duplicate(wakes))] { wake(*own); };
}

/// Counts of items that were copied from a device or lost, for people; empty if there are none.
std::string staged_text(const Export::Counts& sent) {
  std::string text;
  if (sent.staged_items > 0) {
    text += std::to_string(sent.staged_items) + " of a device by page-locked memory of this host, ";
  }
  if (sent.lost > 0) {
    text += std::to_string(sent.lost) +
            " lost with a producer that died before its stream wrote them, ";
  }
  return text;
}

os::Fd make_eventfd(const std::string& what) {
  os::Fd made(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
  if (!made) throw_errno(what + ": cannot make an eventfd");
  return made;
}

}  // namespace

Gateway::Gateway(std::shared_ptr<channel::Pool> pool, const OpenTransport& open)
    : pool_(std::move(pool)),
      wakes_(make_eventfd("gateway of pool '" + pool_->name() + "'")),
      transport_(open(*this)),
      stagings_(*pool_, *transport_, waker_of(wakes_)),
      maker_(*pool_, wakes_),
      leads_away_(pool_->control().geometry().num_rings, false) {
  space_ = std::make_unique<Watch>(pool_->control().header().space, wakes_,
                                   "gateway of pool '" + pool_->name() + "'");
}

Gateway::~Gateway() { close(); }

/// In a forked child a thread that does not exist there may have had the lock, and the sockets are
/// the parent's.
std::unique_lock<std::mutex> Gateway::locked() {
  pool_->check_not_forked();
  return std::unique_lock(mutex_);
}

void Gateway::close() {
  if (pool_->forked()) return;
  const auto lock = locked();
  is_closed_ = true;
  for (auto& [name, connection] : connections_) close_links(connection);
  connections_.clear();
}

std::uint64_t Gateway::process(const std::string& peer) {
  const auto lock = locked();
  const auto [number, is_new] = processes_.try_emplace(peer);
  if (is_new) {
    std::random_device random;
    number->second = random() | std::uint64_t{random()} << 32;
  }
  return number->second;
}

void Gateway::admit(const Peer& peer) {
  const auto lock = locked();
  pool_->check_open();
  if (is_closed_) throw PoolClosed("gateway of pool '" + pool_->name() + "': it is closed");
  Connection& connection = connections_[peer.name];
  close_links(connection);
  // The end of links that a wait is about to return is not that of the new ones.
  std::erase_if(ended_, [&](const Ended& each) { return each.peer == peer.name; });
  const bool has_pool = connection.in && connection.peer.pool == peer.pool;
  const bool has_process = has_pool && connection.peer.process == peer.process;
  if (!connection.out) connection.out = std::make_unique<Export>(pool_, stagings_);
  if (!has_pool) {
    connection.in =
        std::make_unique<Import>(*pool_, *transport_, maker_, leads_away_, peer.max_cells);
  }
  connection.since = !has_pool ? Since::kNew : has_process ? Since::kSame : Since::kReplaced;
  connection.peer = peer;
  transport_->admit(peer.from_peer);
  connection.is_admitted = true;
  connection.in->begin(peer.from_peer.id, connection.since);
}

void Gateway::route(const std::string& name, const std::vector<std::string>& rings) {
  const auto lock = locked();
  const auto found = connections_.find(name);
  if (found == connections_.end()) {
    throw BadArgument("gateway of pool '" + pool_->name() + "': peer '" + name +
                      "' was never admitted");
  }
  for (const std::string& ring : rings) {
    const std::uint16_t number = pool_->ring_number(ring);
    const std::vector<std::uint16_t>& known = found->second.out->rings();
    if (std::ranges::find(known, number) != known.end()) continue;
    if (leads_away_[number]) {
      throw BadArgument("gateway of pool '" + pool_->name() + "': ring '" + ring +
                        "' leads to another host already; its readers are at one");
    }
    open_route(found->second, number);
  }
  wake();
}

void Gateway::open_route(Connection& to, std::uint16_t ring) {
  std::unique_ptr<Watch>& watch = filled_[ring];
  if (!watch) {
    watch = std::make_unique<Watch>(pool_->control().ring_header(ring).filled, wakes_,
                                    "gateway of pool '" + pool_->name() + "'");
  }
  to.out->add_ring(ring);
  leads_away_[ring] = true;
}

bool Gateway::connect(const std::string& name) {
  const auto lock = locked();
  const auto found = connections_.find(name);
  if (found == connections_.end() || found->second.link) {
    throw BadArgument("gateway of pool '" + pool_->name() + "': peer '" + name +
                      "' was never admitted, or is connected already");
  }
  Connection& connection = found->second;
  if (!connection.is_admitted || !connection.ended.empty()) return false;
  const Peer& peer = connection.peer;
  connection.link = transport_->connect(peer.address, peer.to_peer);
  connection.out->begin(connection.link, peer.to_peer.id, connection.since);
  connection.in->connect(connection.link);
  wake();
  return true;
}

void Gateway::detach(const std::string& name) {
  const auto lock = locked();
  const auto found = connections_.find(name);
  if (found != connections_.end()) close_links(found->second);
}

void Gateway::forget(const std::string& name) {
  const auto lock = locked();
  const auto found = connections_.find(name);
  if (found == connections_.end()) return;
  close_links(found->second);
  for (const std::uint16_t ring : found->second.out->rings()) leads_away_[ring] = false;
  connections_.erase(found);
  processes_.erase(name);
}

void Gateway::close_links(Connection& connection) {
  connection.ended.clear();
  if (!std::exchange(connection.is_admitted, false)) return;
  // First the writes end, then the slabs serve others.
  transport_->dismiss(connection.peer.from_peer.id);
  if (connection.link) connection.link->abort();
  connection.link.reset();
  connection.out->end();
  connection.in->end();
}

/// Called within progress: the links are closed after it. What the peer has not been told of by
/// now, it is not told.
void Gateway::end(Connection& connection, const std::string& why) {
  if (!connection.ended.empty() || !connection.is_admitted) return;
  connection.ended = why;
  transport_->dismiss(connection.peer.from_peer.id);
}

Gateway::Connection* Gateway::find(std::uint64_t session) {
  for (auto& [name, connection] : connections_) {
    const Peer& peer = connection.peer;
    if (connection.is_admitted && connection.ended.empty() &&
        (peer.to_peer.id == session || peer.from_peer.id == session)) {
      return &connection;
    }
  }
  return nullptr;
}

template <class Action>
void Gateway::guarded(Connection& connection, Action&& action) noexcept {
  try {
    action();
  } catch (const BrokenRule& error) {
    end(connection, std::string("it broke a rule: ") + error.what());
  } catch (...) {
    if (!failure_) failure_ = std::current_exception();
    end(connection, "this gateway has failed");
  }
}

void Gateway::on_placed(const transport::Placement& placement) {
  Connection* const from = find(placement.grant.session);
  if (from == nullptr) return;
  guarded(*from, [&] { from->in->on_placed(placement); });
}

void Gateway::on_message(std::uint64_t session, const transport::Header& header) {
  Connection* const from = find(session);
  if (from == nullptr) return;
  guarded(*from, [&] { dispatch(*from, header); });
}

void Gateway::dispatch(Connection& from, const transport::Header& header) {
  switch (kind_of(header)) {
    case Kind::kSource: return from.in->on_source(message_of<SourcePart>(header));
    case Kind::kGone: return from.in->on_gone(message_of<Gone>(header));
    case Kind::kWant: return from.in->on_want(message_of<Want>(header));
    case Kind::kGrant: return from.out->on_granted(message_of<Granted>(header));
    case Kind::kHeld:
    case Kind::kReleased: return from.out->on_told(message_of<Told>(header));
    case Kind::kItem: break;  // Only with a payload.
  }
  throw BrokenRule("a message of kind " + std::to_string(std::to_integer<int>(header[0])));
}

void Gateway::on_acknowledged(std::uint64_t session, std::uint64_t number) {
  Connection* const from = find(session);
  if (from == nullptr) return;
  guarded(*from, [&] { from->out->on_acknowledged(number); });
}

void Gateway::on_refused(const transport::Refusal& refusal) {
  if (Connection* const from = find(refusal.session)) {
    end(*from, std::string("it broke a rule: ") + transport::text(refusal.reason));
  }
}

void Gateway::on_closed(std::uint64_t session, const std::string& why) {
  if (Connection* const from = find(session)) end(*from, why);
}

bool Gateway::progress() {
  const auto lock = locked();
  const bool did = progress_all();
  if (failure_) std::rethrow_exception(std::exchange(failure_, nullptr));
  return did;
}

bool Gateway::progress_all() {
  bool did = transport_->progress();
  const bool sweeps = now_ns() - swept_ns_ > kSweepNs;
  if (sweeps) {
    swept_ns_ = now_ns();
    stagings_.sweep();
  }
  for (auto& [name, connection] : connections_) {
    if (connection.ended.empty()) {
      guarded(connection, [&] {
        if (sweeps) connection.out->sweep();
        did |= connection.out->progress();
        did |= connection.in->progress();
      });
    }
    if (connection.ended.empty()) continue;
    ended_.push_back({name, connection.ended});
    close_links(connection);
    did = true;
  }
  return did;
}

/// Everything that happens from now on ends a wait.
void Gateway::arm() {
  bool awaits_space = false;
  for (auto& [name, connection] : connections_) {
    awaits_space |= connection.in->awaits_space();
    if (!connection.link) continue;
    for (const std::uint16_t ring : connection.out->rings()) filled_.at(ring)->arm();
  }
  if (awaits_space) space_->arm();
}

std::vector<Gateway::Ended> Gateway::wait(const Deadline& deadline) {
  bool did = progress();
  while (!did && !deadline.passed()) {
    bool sleeps = false;
    {
      const auto lock = locked();
      arm();
      sleeps = transport_->arm();
    }
    if (sleeps && !(did = progress())) {
      std::array<pollfd, 2> ready{pollfd{transport_->progress_fd(), POLLIN, 0},
                                  pollfd{wakes_.get(), POLLIN, 0}};
      // Rounded up: a wait of 0 ms would poll until the deadline.
      ::poll(ready.data(), ready.size(),
             static_cast<int>(deadline.left_ns(kSweepNs) / 1'000'000) + 1);
      std::uint64_t count;
      if (::read(wakes_.get(), &count, sizeof(count)) > 0) did = true;
    }
    did |= progress();
  }
  const auto lock = locked();
  return std::exchange(ended_, {});
}

void Gateway::wake() noexcept { gateway::wake(wakes_); }

std::vector<Gateway::Traffic> Gateway::traffic() {
  const auto lock = locked();
  std::vector<Traffic> found;
  for (const auto& [name, connection] : connections_) {
    found.push_back({name, connection.link != nullptr,
                     connection.link ? connection.link->stalled_ns() : 0, connection.out->counts(),
                     connection.in->counts()});
  }
  return found;
}

std::string Gateway::explain() {
  std::string text;
  {
    const auto lock = locked();
    text = transport_->explain();
  }
  for (const Traffic& each : traffic()) {
    text += "\n  " + each.peer + (each.is_connected ? "" : " (no link)") + ": sent " +
            std::to_string(each.out.items) + " items of " + std::to_string(each.out.bytes) +
            " bytes, " + staged_text(each.out) + std::to_string(each.out.unreleased) +
            " not released there; received " + std::to_string(each.in.items) + " of " +
            std::to_string(each.in.bytes) + " bytes, " + std::to_string(each.in.unreleased) +
            " not released here, " + std::to_string(each.in.waiting) + " wait for a slab, in " +
            std::to_string(each.in.mirrors) + " mirrors";
  }
  return text;
}

}  // namespace flowtrain::gateway
