#include "torture/fault_injection.hpp"

#include <bit>
#include <csignal>
#include <functional>
#include <optional>
#include <thread>
#include <unordered_set>
#include <vector>

#include "channel/segments/segment_table.hpp"
#include "channel/telemetry/inspect.hpp"
#include "memory/carve.hpp"
#include "os/child.hpp"
#include "torture/participant.hpp"

namespace flowtrain::torture {
namespace {

using channel::Geometry;

constexpr std::uint32_t kLanes = 192;
constexpr std::uint64_t kDemandBytes = 64 * kPageBytes;
constexpr std::uint16_t kOwner = kLanes - 1;  // Of the segments, which never drain here.
constexpr std::uint32_t kReapers = 2;
constexpr std::uint32_t kMaxPerRole = 32;
constexpr std::uint32_t kStopUs = 50'000;
constexpr double kStallS = 1.0;
constexpr int kMaxTriesToStopInWindow = 200;
constexpr double kSettleS = 20.0;

/// Participants and memory of a run.
struct Shape {
  std::uint32_t producers;
  std::uint32_t consumers;
  std::uint32_t class_cells;
  std::uint32_t demand_cells;  ///< Of a segment whose slabs are made on demand; 0 for none.
  double settle_s;             ///< Timeout for consumers and reapers to empty the ring at the end.
};

/// One producer reuses one cell again and again while reapers look at it.
constexpr Shape kTight{1, 5, 1, 0, 2.0};

/// Starts, stops and kills participants, then checks the ring and the ledger.
template <class Protocol>
class FaultInjector {
 public:
  FaultInjector(const Options& options, const Shape& shape)
      : options_(options),
        shape_(shape),
        file_(os::sealed_memfd("torture.control", Control::file_bytes(geometry()))),
        control_(Control::make(file_, "torture.control", geometry())),
        lanes_(control_, file_),
        shared_{control_, file_, ledger_, shape.class_cells, {}} {
    add_segment(memory::carve({{kClassBytes, shape.class_cells}}));
    if (shape.demand_cells > 0) {
      add_segment(memory::carve_on_demand(kDemandBytes, shape.demand_cells));
    }
    roles_.insert(roles_.end(), shape.producers, Role::kProducer);
    roles_.insert(roles_.end(), shape.consumers, Role::kConsumer);
    roles_.insert(roles_.end(), kReapers, Role::kReaper);
    children_.resize(roles_.size());
    random_state = options.seed * 2 + 1;
  }

  Report run() {
    const Stopwatch watch;
    for (std::uint32_t i = 0; i < roles_.size(); ++i) start(i);
    ::usleep(20'000);  // Until all of them work.
    counters().last_commit_ns = now_ns();
    counters().longest_gap_ns = 0;
    while ((report_.kills < options_.kills || report_.stops < options_.stops) &&
           watch.elapsed_s() <= options_.max_s) {
      ::usleep(static_cast<useconds_t>(200 + draw() % 2000));
      const std::uint64_t kills_left = options_.kills - report_.kills;
      const std::uint64_t stops_left = options_.stops - report_.stops;
      if (draw() % (kills_left + stops_left) < stops_left) {
        stop_one();
      } else {
        kill_some(std::min<std::uint64_t>(kills_left, 1 + draw() % 4));
      }
    }
    report_.longest_stall_ms = static_cast<double>(counters().longest_gap_ns) * 1e-6;
    settle();
    audit();
    report_.seconds = watch.elapsed_s();
    return report_;
  }

 private:
  using Child = os::Child<std::function<void()>>;

  Geometry geometry() const {
    const std::uint32_t cells = shape_.class_cells + shape_.demand_cells;
    return {kLanes, cells, 1, std::bit_ceil(cells)};
  }

  void add_segment(const memory::Carving& carving) {
    channel::SegmentTable table(control_, lanes_, "torture");
    const std::uint32_t index = table.try_claim(carving, kOwner).value();
    table.fill(index, carving);
    table.make_live(index, table.word(index));
    const os::Fd file = os::sealed_memfd("torture.slabs", carving.bytes);
    shared_.memory[index] = mappings_.emplace_back(file, carving.bytes, "torture.slabs").data();
  }

  Ledger::Counters& counters() const { return ledger_.counters(); }
  ParticipantSlot& slot(std::uint32_t i) const { return counters().slots[i]; }

  void start(std::uint32_t i) {
    const std::uint64_t seed = draw() | 1;
    children_[i].emplace([this, i, seed] {
      own_slot = &slot(i);
      own_slot->window = 0;
      random_state = seed;
      Participant<Protocol>(shared_, roles_[i]).run();
    });
  }

  /// Kills a participant. Returns whether it was in a window.
  bool kill(std::uint32_t i) {
    if (!children_[i]) return false;
    children_[i]->send(SIGKILL);
    report_.crashed += children_[i]->wait() != Child::End::kKilled;
    children_[i].reset();
    const std::uint64_t releasing = slot(i).releasing.exchange(0, std::memory_order_relaxed);
    if (releasing != 0) undecided_.insert(releasing - 1);
    return slot(i).window.load(std::memory_order_relaxed) != 0;
  }

  void kill_some(std::uint64_t count) {
    for (std::uint64_t k = 0; k < count; ++k) {
      const auto i = static_cast<std::uint32_t>(draw() % roles_.size());
      if (!children_[i]) continue;
      ++report_.kills;
      report_.kills_in_window += kill(i);
    }
    for (std::uint32_t i = 0; i < roles_.size(); ++i) {
      if (!children_[i]) start(i);
    }
  }

  /// Stops one participant for kStopUs, in a window if one is found there within
  /// kMaxTriesToStopInWindow tries; for kStallS if nothing is committed meanwhile, since the kernel
  /// may have kept the others from their cores.
  void stop_one() {
    for (int tries = 1;; ++tries) {
      const auto i = static_cast<std::uint32_t>(draw() % roles_.size());
      if (!children_[i]->stop()) {  // It had ended by itself.
        kill(i);
        start(i);
        continue;
      }
      const bool in_window = slot(i).window.load(std::memory_order_relaxed) != 0;
      if (in_window || tries >= kMaxTriesToStopInWindow) {
        const std::uint64_t before = counters().committed.load(std::memory_order_relaxed);
        const auto stalls = [&] {
          return counters().committed.load(std::memory_order_relaxed) == before;
        };
        ::usleep(kStopUs);
        for (const Deadline end = Deadline::in(kStallS); stalls() && !end.passed();) ::usleep(1000);
        ++report_.stops;
        report_.stalled_by_stop += stalls();
      }
      children_[i]->send(SIGCONT);
      if (in_window || tries >= kMaxTriesToStopInWindow) return;
    }
  }

  std::uint32_t cells_in_use() const {
    std::uint32_t used = 0;
    for (std::uint32_t c = 0; c < control_.num_cells(); ++c) {
      const auto word = control_.word(c).load(std::memory_order_acquire);  // sync: cell.word
      used += lockfree::state_of(word) != lockfree::CellState::kFree;
    }
    return used;
  }

  /// Kills the producers, waits until the ring is empty, then kills the others.
  void settle() {
    for (std::uint32_t i = 0; i < roles_.size(); ++i) {
      if (roles_[i] == Role::kProducer) kill(i);
    }
    const Deadline deadline = Deadline::in(shape_.settle_s);
    while (cells_in_use() > 0 && !deadline.passed()) ::usleep(1000);
    for (std::uint32_t i = 0; i < roles_.size(); ++i) kill(i);
  }

  /// Bytes of slabs in use. If there are none, each segment must have its whole memory.
  std::uint64_t leaked_bytes() {
    std::uint64_t bytes = 0;
    for (const channel::SegmentInfo& segment : segment_infos(control_)) {
      bytes += segment.bytes_in_use;
    }
    channel::SlabAllocator slabs(control_, lanes_, kOwner, kOwner);
    if (bytes == 0 && shape_.demand_cells > 0 &&
        slabs.try_lease_in(1, kDemandBytes) == channel::SlabAllocator::kNone) {
      return kDemandBytes;
    }
    return bytes;
  }

  void audit() {
    report_.leaked_slabs = cells_in_use();
    report_.leaked_bytes = leaked_bytes();
    const std::uint64_t items = std::min(counters().next.load(), Ledger::kMaxItems);
    for (std::uint64_t item = 0; item < items; ++item) {
      const bool published = ledger_.published()[item] != 0;
      const std::uint8_t commits = ledger_.committed()[item];
      // A committed item was published, even if its producer died before it marked it so.
      report_.published += published || commits > 0;
      report_.committed += commits > 0;
      report_.committed_twice += commits > 1;
      report_.lost += published && commits == 0 && !undecided_.contains(item);
    }
    report_.undecided = undecided_.size();
    report_.corrupt = counters().corrupt;
    report_.shrunk = counters().shrunk;
    for (std::uint32_t i = 0; i < kLanes; ++i) {
      report_.redelivered += control_.lane(i).items_redelivered;
    }
  }

  Options options_;
  Shape shape_;
  os::Fd file_;
  Control control_;
  Lanes lanes_;
  std::vector<os::Mapping> mappings_;
  Ledger ledger_;
  SharedState shared_;
  std::vector<Role> roles_;
  std::vector<std::optional<Child>> children_;
  std::unordered_set<std::uint64_t> undecided_;
  Report report_;
};

}  // namespace

Report inject_faults(const Options& options) {
  const std::uint32_t per_role = std::min(2 * std::thread::hardware_concurrency(), kMaxPerRole);
  const Shape shape = options.tight ? kTight : Shape{per_role, per_role, 64, 24, kSettleS};
  if (options.without.empty()) return FaultInjector<Shipped>(options, shape).run();
  if (options.without == "publishing")
    return FaultInjector<WithoutPublishing>(options, shape).run();
  if (options.without == "taking") return FaultInjector<WithoutTaking>(options, shape).run();
  if (options.without == "re-check") return FaultInjector<WithoutRecheck>(options, shape).run();
  if (options.without == "generation")
    return FaultInjector<WithoutGeneration>(options, shape).run();
  throw BadArgument("torture: without='" + options.without +
                    "' must be publishing, taking, re-check or generation");
}

}  // namespace flowtrain::torture
