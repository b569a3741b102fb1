#include "channel/monitor.hpp"

#include <poll.h>
#include <sys/eventfd.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <set>

#include "base/error.hpp"
#include "channel/pool.hpp"
#include "channel/undertaker.hpp"
#include "os/byte_lock.hpp"

namespace flowtrain::channel {
namespace {

constexpr int kTickMs = 20;    // How late a new segment or participant is seen.
constexpr int kRetryMs = 1;    // A reaping that met a lane in the middle of a move.
constexpr int kSlowTicks = 5;  // Ticks between looks without a cause, for deaths and segments.

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
    // Deaths from before this handle are not its news.
    if (is_dead(lane)) reported_[lane.index] = lane.generation;
  }
  mapper_ = std::jthread([this](const std::stop_token& stop) { map(stop); });
  thread_ = std::jthread([this](const std::stop_token& stop) { run(stop); });
}

Monitor::~Monitor() {
  thread_.request_stop();
  const std::uint64_t one = 1;
  static_cast<void>(::write(wake_.get(), &one, sizeof(one)));
}

void Monitor::run(const std::stop_token& stop) {
  const Header& header = pool_.control().header();
  std::uint32_t lanes_seen = 0;
  bool settled = true;
  for (std::uint64_t tick = 0; !stop.stop_requested(); ++tick) {
    const auto lanes = header.lanes_version.load(std::memory_order_acquire);  // sync: control.lanes
    const auto segments =
        header.segments_version.load(std::memory_order_acquire);  // sync: control.segments
    if (lanes != lanes_seen) watch_processes();
    // A mapping that failed, say for want of descriptors, is retried while its owner lives: later
    // there is nobody to have the memory from.
    const bool slow_tick = tick % kSlowTicks == 0;
    if (segments != segments_mapped_.load(std::memory_order_relaxed) ||
        !pool_.segments().asked().empty() || (slow_tick && pool_.segments().has_unmapped())) {
      const std::lock_guard lock(news_mutex_);
      news_ = true;
      news_changed_.notify_one();
    }
    const bool somebody_died = sleep(settled ? kTickMs : kRetryMs);
    if (somebody_died || !settled || slow_tick) {
      settled = bury_the_dead();
      pool_.segments().sweep();
    }
    if (lanes != lanes_seen || somebody_died || !settled) report_deaths();
    lanes_seen = lanes;
  }
}

void Monitor::map(const std::stop_token& stop) {
  for (;;) {
    {
      std::unique_lock lock(news_mutex_);
      news_changed_.wait(lock, stop, [this] { return news_; });
      if (stop.stop_requested()) return;
      news_ = false;
    }
    const auto segments = pool_.control().header().segments_version.load(
        std::memory_order_acquire);  // sync: control.segments
    // If an owner answers later than this waits, the next look of `run` finds its answer.
    pool_.segments().map_all(Deadline::in(kOwnersAnswerS),
                             [&stop] { return stop.stop_requested(); });
    if (pool_.segments().refresh()) segments_mapped_.store(segments, std::memory_order_relaxed);
  }
}

bool Monitor::sleep(int timeout_ms) {
  std::vector<pollfd> waiting{{wake_.get(), POLLIN, 0}};
  std::vector<std::int32_t> pids{0};
  for (const auto& [pid, fd] : processes_) {
    waiting.push_back({fd.get(), POLLIN, 0});
    pids.push_back(pid);
  }
  // An answer ends the sleep, and is taken by the next refresh.
  for (const int socket : pool_.segments().asked()) waiting.push_back({socket, POLLIN, 0});
  if (::poll(waiting.data(), waiting.size(), timeout_ms) <= 0) return false;
  bool died = false;
  for (std::size_t i = 1; i < pids.size(); ++i) {
    if (waiting[i].revents == 0) continue;
    // Kept as an empty entry: a lock that outlives its process must not make this loop spin.
    processes_[pids[i]].reset();
    died = true;
  }
  return died;
}

void Monitor::watch_processes() {
  std::set<std::int32_t> alive;
  for (const LaneInfo& lane : pool_.lanes().all()) {
    if (lane.state == LaneState::kAlive && lane.pid != ::getpid()) alive.insert(lane.pid);
  }
  std::erase_if(processes_, [&](const auto& entry) { return !alive.contains(entry.first); });
  for (const std::int32_t pid : alive) {
    if (!processes_.contains(pid)) processes_.emplace(pid, open_pidfd(pid));
  }
}

bool Monitor::bury_the_dead() {
  Undertaker<> undertaker(pool_.control(), pool_.lanes(), pool_.lane());
  const bool settled =
      undertaker.bury_the_dead([this](std::uint16_t lane) { pool_.segments().drain(lane); });
  report_deaths();
  return settled;
}

void Monitor::report_deaths() {
  for (const LaneInfo& lane : pool_.lanes().all()) {
    if (!is_dead(lane) || reported_[lane.index] == lane.generation) continue;
    reported_[lane.index] = lane.generation;
    if (lane.role == LaneRole::kPool) pool_.report_dead(lane);
  }
}

}  // namespace flowtrain::channel
