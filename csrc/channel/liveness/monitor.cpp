#include "channel/liveness/monitor.hpp"

#include <poll.h>
#include <sys/eventfd.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <set>

#include "base/error.hpp"
#include "channel/liveness/recovery.hpp"
#include "channel/pool.hpp"
#include "os/thread.hpp"

namespace flowtrain::channel {
namespace {

constexpr int kTickMs = 20;    // Maximum delay until a new segment or participant is seen.
constexpr int kRetryMs = 1;    // Until an incomplete recovery is retried.
constexpr int kSlowTicks = 5;  // Ticks between unconditional checks of deaths and segments.

os::Fd open_pidfd(std::int32_t pid) {
  return os::Fd(static_cast<int>(::syscall(SYS_pidfd_open, pid, 0)));
}

bool is_dead(const LaneInfo& lane) {
  return lane.state == LaneState::kDying || lane.state == LaneState::kDead;
}

}  // namespace

Monitor::Monitor(Pool& pool)
    : pool_(pool), wake_(::eventfd(0, EFD_CLOEXEC)), reported_(pool.lanes().size(), 0) {
  if (!wake_) throw_errno("pool '" + pool.name() + "': eventfd");
  for (const LaneInfo& lane : pool.lanes().all()) {
    // Reports only deaths after this handle joined.
    if (is_dead(lane)) reported_[lane.index] = lane.generation;
  }
  const std::string what = "pool '" + pool.name() + "'";
  mapper_ = os::start_thread(what, "maps new segments",
                             [this](const std::stop_token& stop) { map_segments(stop); });
  watcher_ = os::start_thread(what, "sees the death of other processes",
                              [this](const std::stop_token& stop) { watch(stop); });
}

Monitor::~Monitor() {
  watcher_.request_stop();
  const std::uint64_t one = 1;
  // Fails only if the counter is at its maximum, which wakes the thread as well.
  [[maybe_unused]] const auto written = ::write(wake_.get(), &one, sizeof(one));
}

void Monitor::watch(const std::stop_token& stop) {
  const Header& header = pool_.control().header();
  std::uint32_t lanes_seen = 0;
  bool recovered = true;
  for (std::uint64_t tick = 0; !stop.stop_requested(); ++tick) {
    const auto lanes = header.lanes_version.load(std::memory_order_acquire);  // sync: control.lanes
    const auto segments =
        header.segments_version.load(std::memory_order_acquire);  // sync: control.segments
    if (lanes != lanes_seen) update_pidfds();
    // A failed mapping, for example for lack of descriptors, is retried while the owner lives:
    // afterwards the memory can no longer be had.
    const bool slow_tick = tick % kSlowTicks == 0;
    if (segments != mapped_version_.load(std::memory_order_relaxed) ||
        !pool_.segments().pending_sockets().empty() ||
        (slow_tick && pool_.segments().has_unmapped())) {
      const std::lock_guard lock(mapper_mutex_);
      map_requested_ = true;
      mapper_woken_.notify_one();
    }
    const bool process_died = sleep(recovered ? kTickMs : kRetryMs);
    if (process_died || !recovered || slow_tick) {
      recovered = reclaim_dead();
      pool_.leave_idle();
      pool_.segments().sweep();
      pool_.segments().serve_orphans();
    }
    if (lanes != lanes_seen || process_died || !recovered) report_deaths();
    lanes_seen = lanes;
  }
}

void Monitor::map_segments(const std::stop_token& stop) {
  for (;;) {
    {
      std::unique_lock lock(mapper_mutex_);
      mapper_woken_.wait(lock, stop, [this] { return map_requested_; });
      if (stop.stop_requested()) return;
      map_requested_ = false;
    }
    const auto segments = pool_.control().header().segments_version.load(
        std::memory_order_acquire);  // sync: control.segments
    // If an owner answers after this deadline, the watcher sees its answer and wakes this thread.
    pool_.segments().map_all(Deadline::in(kOwnerResponseS),
                             [&stop] { return stop.stop_requested(); });
    if (pool_.segments().refresh()) mapped_version_.store(segments, std::memory_order_relaxed);
  }
}

bool Monitor::sleep(int timeout_ms) {
  std::vector<pollfd> waiting{{wake_.get(), POLLIN, 0}};
  std::vector<std::int32_t> pids{0};
  for (const auto& [pid, fd] : processes_) {
    waiting.push_back({fd.get(), POLLIN, 0});
    pids.push_back(pid);
  }
  // An owner's answer ends the sleep too; the mapper receives it.
  for (const int socket : pool_.segments().pending_sockets()) {
    waiting.push_back({socket, POLLIN, 0});
  }
  if (::poll(waiting.data(), waiting.size(), timeout_ms) <= 0) return false;
  bool died = false;
  for (std::size_t i = 1; i < pids.size(); ++i) {
    if (waiting[i].revents == 0) continue;
    // Keeps an empty entry: a lock that outlives its process must not make the watcher spin.
    processes_[pids[i]].reset();
    died = true;
  }
  return died;
}

void Monitor::update_pidfds() {
  std::set<std::int32_t> alive;
  for (const LaneInfo& lane : pool_.lanes().all()) {
    if (lane.state == LaneState::kAlive && lane.pid != ::getpid()) alive.insert(lane.pid);
  }
  std::erase_if(processes_, [&](const auto& entry) { return !alive.contains(entry.first); });
  for (const std::int32_t pid : alive) {
    if (!processes_.contains(pid)) processes_.emplace(pid, open_pidfd(pid));
  }
}

bool Monitor::reclaim_dead() {
  Recovery<> recovery(pool_.control(), pool_.lanes(), pool_.lane());
  const bool recovered =
      recovery.reclaim_dead([this](std::uint16_t lane) { pool_.segments().drain_all(lane); });
  report_deaths();
  return recovered;
}

void Monitor::report_deaths() {
  for (const LaneInfo& lane : pool_.lanes().all()) {
    if (!is_dead(lane) || reported_[lane.index] == lane.generation) continue;
    reported_[lane.index] = lane.generation;
    if (lane.role == LaneRole::kPool) pool_.report_dead(lane);
  }
}

}  // namespace flowtrain::channel
