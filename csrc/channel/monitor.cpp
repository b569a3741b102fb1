#include "channel/monitor.hpp"

#include <poll.h>
#include <sys/eventfd.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <set>

#include "base/error.hpp"
#include "channel/pool.hpp"
#include "channel/reaper.hpp"
#include "os/byte_lock.hpp"

namespace flowtrain::channel {
namespace {

constexpr int kTickMs = 20;    // How late a new segment or participant is seen.
constexpr int kRetryMs = 1;    // A reaping that met a lane in the middle of a move.
constexpr int kSlowTicks = 5;  // Ticks between looks at all byte locks without a cause.

os::Fd open_pidfd(std::int32_t pid) {
  return os::Fd(static_cast<int>(::syscall(SYS_pidfd_open, pid, 0)));
}

}  // namespace

Monitor::Monitor(Pool& pool)
    : pool_(pool),
      wake_(::eventfd(0, EFD_CLOEXEC)),
      reported_(pool.control().geometry().max_lanes, 0) {
  if (!wake_) throw_errno("pool '" + pool.name() + "': eventfd");
  for (std::uint32_t i = 0; i < reported_.size(); ++i) {
    // Deaths from before this handle are not its news.
    if (pool.lane_info(i).state == LaneState::kDead) {
      reported_[i] = pool.control().lane(i).generation;
    }
  }
  thread_ = std::jthread([this](const std::stop_token& stop) { run(stop); });
}

Monitor::~Monitor() {
  if (!thread_.joinable()) return;
  thread_.request_stop();
  const std::uint64_t one = 1;
  static_cast<void>(::write(wake_.get(), &one, sizeof(one)));
}

void Monitor::forget_thread() { thread_.detach(); }

void Monitor::run(const std::stop_token& stop) {
  const Header& header = pool_.control().header();
  std::uint32_t lanes_seen = 0, segments_seen = 0;
  bool settled = true;
  for (std::uint64_t tick = 0; !stop.stop_requested(); ++tick) {
    const std::uint32_t lanes = header.lanes_version.load(std::memory_order_acquire);
    if (lanes != lanes_seen) watch_processes();
    const std::uint32_t segments = header.segments_version.load(std::memory_order_acquire);
    if (segments != segments_seen) pool_.map_segments();
    const bool somebody_died = sleep(settled ? kTickMs : kRetryMs);
    if (somebody_died || !settled || tick % kSlowTicks == 0) settled = check_lanes();
    if (lanes != lanes_seen || somebody_died || !settled) report_deaths();
    lanes_seen = lanes;
    segments_seen = segments;
  }
}

bool Monitor::sleep(int timeout_ms) {
  std::vector<pollfd> waiting{{wake_.get(), POLLIN, 0}};
  std::vector<std::int32_t> pids{0};
  for (const auto& [pid, fd] : processes_) {
    waiting.push_back({fd.get(), POLLIN, 0});
    pids.push_back(pid);
  }
  if (::poll(waiting.data(), waiting.size(), timeout_ms) <= 0) return false;
  bool died = false;
  for (std::size_t i = 1; i < waiting.size(); ++i) {
    if (waiting[i].revents == 0) continue;
    // Kept as an empty entry: a lock that outlives its process must not make this loop spin.
    processes_[pids[i]].reset();
    died = true;
  }
  return died;
}

void Monitor::watch_processes() {
  std::set<std::int32_t> alive;
  for (std::uint32_t i = 0; i < reported_.size(); ++i) {
    const LaneInfo lane = pool_.lane_info(i);
    if (lane.state == LaneState::kAlive && lane.pid != ::getpid()) alive.insert(lane.pid);
  }
  std::erase_if(processes_, [&](const auto& entry) { return !alive.contains(entry.first); });
  for (const std::int32_t pid : alive) {
    if (!processes_.contains(pid)) processes_.emplace(pid, open_pidfd(pid));
  }
}

bool Monitor::check_lanes() {
  bool settled = true;
  for (std::uint32_t i = 0; i < reported_.size(); ++i) {
    const auto lane = static_cast<std::uint16_t>(i);
    if (pool_.lane_info(i).state == LaneState::kAlive && !pool_.holds(lane) &&
        !os::is_byte_locked(pool_.file(), i)) {
      settled &= bury(lane);
    }
  }
  return settled;
}

bool Monitor::bury(std::uint16_t number) {
  const Control& control = pool_.control();
  const std::uint32_t reaper_byte = control.geometry().max_lanes;
  if (!os::try_lock_byte(pool_.file(), reaper_byte)) return false;
  Lane& lane = control.lane(number);
  bool done = true;
  // It may have left cleanly, or been buried by another handle, before the lock was ours.
  const auto state = lane.state.load(std::memory_order_acquire);  // sync: lane.state
  if (state == LaneState::kAlive && !os::is_byte_locked(pool_.file(), number)) {
    done = reap(pool_, number);
    if (done) {
      if (lane.role == LaneRole::kPool) pool_.retire_segments(number);
      lane.state.store(LaneState::kDead, std::memory_order_release);  // sync: lane.state
      control.header().lanes_version.fetch_add(1, std::memory_order_release);
      control.header().space.notify();
    }
  }
  os::unlock_byte(pool_.file(), reaper_byte);
  return done;
}

void Monitor::report_deaths() {
  for (std::uint32_t i = 0; i < reported_.size(); ++i) {
    const LaneInfo lane = pool_.lane_info(i);
    const std::uint32_t generation = pool_.control().lane(i).generation;
    if (lane.state != LaneState::kDead || reported_[i] == generation) continue;
    reported_[i] = generation;
    if (lane.role == LaneRole::kPool) pool_.report_dead(lane);
  }
}

}  // namespace flowtrain::channel
