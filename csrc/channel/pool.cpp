#include "channel/pool.hpp"

#include <algorithm>
#include <chrono>
#include <map>
#include <thread>

#include "base/error.hpp"
#include "channel/layout/names.hpp"
#include "channel/liveness/monitor.hpp"
#include "channel/liveness/registry.hpp"
#include "channel/liveness/stream_work.hpp"
#include "channel/segments/handover.hpp"
#include "os/folder.hpp"

namespace flowtrain::channel {

using lockfree::CellState;

LaneHold::~LaneHold() {
  if (pool_->forked()) return;
  {
    const std::lock_guard lock(pool_->publishers_mutex_);
    pool_->publishers_.erase(publishing_);
  }
  pool_->leave(lane_);
}
Lane& LaneHold::operator*() const { return pool_->control().lane(lane_); }

Pool::Pool(const PoolOptions& options, os::Fd folder, os::Fd file, Control control)
    : name_(options.name),
      label_(options.label),
      folder_(std::move(folder)),
      file_(std::move(file)),
      control_(std::move(control)),
      lanes_(std::make_unique<Lanes>(control_, file_)),
      segments_(std::make_unique<Segments>(control_, *lanes_, name_, folder_, options.resources)) {}

Pool::~Pool() {
  try {
    close();
  } catch (const Error&) {
    // The readers of a lost item get StaleAddress.
  }
  // A stream may wait for an item that was given back.
  if (segments_->streams().used() && StreamWork::any_lane_pending(control_)) keep_for_streams();
  file_.reset();  // While registered, so that a child forked before this also closes it.
  unregister_pool(this);
}

void Pool::leave(std::uint16_t lane) {
  if (try_leave(lane)) return;
  const std::lock_guard lock(leaving_mutex_);
  leaving_.insert(lane);
}

bool Pool::try_leave(std::uint16_t lane) {
  const StreamWork streams(control_, lane);
  // It holds a slab only if the device failed. Then nobody knows when its work ends, but with the
  // process.
  if (streams.pending() || streams.holds()) return false;
  streams.settle();  // Frees poisoned slabs that its consumer did not confirm.
  lanes_->leave(lane);
  return true;
}

void Pool::leave_idle() {
  const std::lock_guard lock(leaving_mutex_);
  std::erase_if(leaving_, [this](std::uint16_t lane) { return try_leave(lane); });
}

bool Pool::streams_pending() const {
  for (std::uint32_t i = 0; i < lanes_->size(); ++i) {
    const auto lane = static_cast<std::uint16_t>(i);
    if (lanes_->holds(i) && StreamWork(control_, lane).pending()) return true;
  }
  return false;
}

void Pool::close(const Interrupted& interrupted) {
  if (forked() || closed_.exchange(true, std::memory_order_relaxed)) return;
  // Pairs with the one in wait_if_closed: either the work of a stream is found below, or the call
  // that enqueued it waits for it.
  std::atomic_thread_fence(std::memory_order_seq_cst);
  end_publishing();
  std::string loss;
  if (joined_) {
    const Deadline deadline = Deadline::in(kHandoverS);
    bool busy = streams_pending();
    while (busy && !deadline.passed() && !(interrupted && interrupted())) {
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
      busy = streams_pending();
    }
    if (!forked()) leave_idle();
    loss = hand_over(interrupted);
    if (busy) {
      keep_for_streams();
      loss += (loss.empty() ? "" : "; ") + std::string("pool '") + name_ +
              "': this handle is closed now, but streams of this process had not written or read " +
              "all of their slabs within " + std::to_string(deadline.waited_s()) +
              " s; synchronize them before close";
    }
    check_not_forked();  // `interrupted` may run a program's code.
    monitor_.reset();
    segments_->close(busy);
    segments_->drain_all(lane_);
    lanes_->leave(lane_);
  }
  if (creator_ || (removal_ && removal_->leave())) {
    os::remove_pool_folder(folder_, name_);
  } else if (!os::is_linked(file_)) {
    os::remove_empty_pool_folder(folder_, name_);  // This handle's socket may have kept it.
  }
  removal_.reset();
  dead_changed_.notify_all();
  if (!loss.empty()) throw PoolTimeout(loss);
}

void Pool::keep_for_streams() {
  control_.keep_mapped();
  segments_->streams().keep();
}

void Pool::wait_if_closed(const memory::StreamSteps& steps, memory::StreamHandle stream) const {
  std::atomic_thread_fence(std::memory_order_seq_cst);
  if (closed()) steps.synchronize(stream);
}

/// Waits for the calls that publish without having seen `closed_`, so that what follows finds their
/// items.
void Pool::end_publishing() {
  const std::lock_guard lock(publishers_mutex_);
  for (std::mutex* const publishing : publishers_) const std::lock_guard ended(*publishing);
}

/// Waits until this handle may leave. Returns what may be lost with it; empty if nothing.
std::string Pool::hand_over(const Interrupted& interrupted) {
  control_.lane(lane_).leaving.store(true, std::memory_order_relaxed);
  if (creator_) control_.header().admission.store(Admission::kClosing, std::memory_order_relaxed);
  // Pairs with the fences in open and Segments::admits_segments: the search below finds every
  // handle that was opened, and every segment that was added. And with itself in another handle: of
  // two that leave at once, one at least does not take the other for one that stays.
  std::atomic_thread_fence(std::memory_order_seq_cst);
  const Handover handover(control_, *lanes_, lane_, creator_);
  const Deadline deadline = Deadline::in(kHandoverS), soon = Deadline::in(kOwnerResponseS);
  for (;;) {
    // A handle that is stopped should not delay this one, if another hands out the memory.
    const std::optional<Handover::Missing> missing = handover.find(!soon.passed());
    if (!missing) return {};
    if (deadline.passed() || !os::is_linked(folder_) || (interrupted && interrupted())) {
      return "pool '" + name_ + "': this handle is closed now, but within " +
             std::to_string(deadline.waited_s()) + " s " + control_.name_of(missing->lane) +
             " did not map segment " + std::to_string(missing->segment + 1) + ", which has " +
             std::to_string(handover.items_in(missing->segment)) +
             " items; readers without it get StaleAddress; continue that process if it is " +
             "stopped, and remove a pool's name only when its handles are closed";
    }
    segments_->serve_orphans();
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
}

void Pool::abandon() noexcept {
  forked_.store(true, std::memory_order_relaxed);
  if (removal_) removal_->abandon();
  removal_.reset();
  file_.reset();
  segments_->abandon();
  if (monitor_) monitor_->abandon();
  // Leaked, not destroyed: a thread that does not exist here may have been changing them.
  static_cast<void>(monitor_.release());
  static_cast<void>(dead_.release());
}

void Pool::check_not_forked() const {
  if (!forked()) return;
  throw PoolClosed("pool '" + name_ + "': this handle belongs to the parent process; open the " +
                   "pool again after the fork");
}

void Pool::check_open() const {
  check_not_forked();
  if (closed()) throw PoolClosed("pool '" + name_ + "': this handle is closed; open it again");
}

std::unique_ptr<LaneHold> Pool::join(LaneRole role, std::uint16_t ring, std::mutex* publishing) {
  check_open();
  auto hold = std::make_unique<LaneHold>(shared_from_this(),
                                         lanes_->join(role, ring, label_, name_), publishing);
  const std::lock_guard lock(publishers_mutex_);
  if (publishing != nullptr) publishers_.insert(publishing);
  return hold;
}

std::uint32_t Pool::add_segment(const memory::Carving& carving, bool prefault,
                                const Interrupted& interrupted, const memory::Place& place) {
  check_open();
  const auto ended = [&] { return (interrupted && interrupted()) || closed(); };
  const auto claim = segments_->claim(carving, lane_, ended, place);
  const std::uint32_t number = claim ? segments_->make(*claim, carving, prefault, ended) : 0;
  if (number == 0) check_open();
  return number;
}

void Pool::drop_segment(std::uint32_t number) {
  check_open();
  segments_->drain(number, lane_);
}

std::uint16_t Pool::ring_number(const std::string& name) const {
  for (std::uint16_t i = 0; i < control_.geometry().num_rings; ++i) {
    if (name == std::string(control_.ring_header(i).name)) return i;
  }
  std::string known;
  for (const std::string& ring : ring_names()) known += (known.empty() ? "" : ", ") + ring;
  throw BadArgument("pool '" + name_ + "': there is no ring " + quoted(name) + "; it has " + known);
}

std::vector<std::string> Pool::ring_names() const {
  std::vector<std::string> names;
  for (std::uint32_t i = 0; i < control_.geometry().num_rings; ++i) {
    names.emplace_back(control_.ring_header(i).name);
  }
  return names;
}

std::string Pool::holders() const {
  struct Count {
    std::uint32_t leased = 0, published = 0, taken = 0;
  };
  const std::uint32_t lanes = control_.geometry().max_lanes;
  std::vector<Count> by_lane(lanes + 1);  // The last one: owners that do not exist.
  for (std::uint32_t c = 0; c < control_.num_cells(); ++c) {
    const auto word = control_.word(c).load(std::memory_order_relaxed);
    Count& count = by_lane[std::min<std::uint32_t>(lockfree::owner_of(word), lanes)];
    switch (lockfree::state_of(word)) {
      case CellState::kFree: break;
      case CellState::kLeased: ++count.leased; break;
      case CellState::kPublished: ++count.published; break;
      case CellState::kTaken: ++count.taken; break;
    }
  }
  std::map<std::string, Count> counts;
  for (std::uint32_t lane = 0; lane <= lanes; ++lane) {
    const auto& [leased, published, taken] = by_lane[lane];
    if (leased + published + taken == 0) continue;
    const std::string label = control_.label_of(lane);
    Count& count = counts[label.empty() ? control_.name_of(lane) : "'" + label + "'"];
    count.leased += leased;
    count.published += published;
    count.taken += taken;
  }
  std::string text;
  for (const auto& [name, count] : counts) {
    text += (text.empty() ? "" : "; ") + name + " (" + std::to_string(count.leased) + " leased, " +
            std::to_string(count.published) + " published, " + std::to_string(count.taken) +
            " taken)";
  }
  return text.empty() ? "no lane" : text;
}

void Pool::report_dead(const LaneInfo& lane) {
  const std::lock_guard lock(dead_mutex_);
  dead_->push_back(lane);
  dead_changed_.notify_all();
}

std::optional<LaneInfo> Pool::wait_dead(const Deadline& deadline) {
  check_open();
  std::unique_lock lock(dead_mutex_);
  while (dead_->empty() && !deadline.passed() && !closed()) {
    dead_changed_.wait_for(lock, std::chrono::nanoseconds(deadline.left_ns(100'000'000)));
  }
  if (dead_->empty()) return std::nullopt;
  LaneInfo lane = dead_->front();
  dead_->pop_front();
  return lane;
}

}  // namespace flowtrain::channel
