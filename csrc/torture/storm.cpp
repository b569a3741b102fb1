#include <bit>
#include <csignal>
#include <functional>
#include <optional>
#include <thread>
#include <unordered_set>

#include "os/child.hpp"
#include "torture/participants.hpp"
#include "torture/torture.hpp"

namespace flowtrain::torture {
namespace {

using channel::Geometry;

constexpr std::uint32_t kLanes = 192;
constexpr std::uint32_t kSlabWords = 64;
constexpr std::uint32_t kReapers = 2;
constexpr std::uint32_t kMostOfARole = 32;
constexpr std::uint32_t kStopUs = 50'000;
constexpr int kTriesToStopInside = 200;
constexpr double kSettleS = 20.0;

/// Who takes part, and in what.
struct Shape {
  std::uint32_t producers;
  std::uint32_t consumers;
  std::uint32_t cells;
  double settle_s;  ///< How long those who are left have to finish.
};

/// The same cell by the same producer again and again, while a reaper is looking.
constexpr Shape kTight{1, 5, 1, 2.0};

/// Puts participants on seats, ends them, and audits what they leave.
template <class Protocol>
class Driver {
 public:
  Driver(const Options& options, const Shape& shape)
      : options_(options),
        cells_(shape.cells),
        settle_s_(shape.settle_s),
        file_(os::sealed_memfd("torture.control", Control::file_bytes(geometry()))),
        control_(Control::make(file_, "torture.control", geometry())),
        slab_file_(os::sealed_memfd("torture.slabs", cells_ * kSlabWords * sizeof(std::uint64_t))),
        slabs_(slab_file_, cells_ * kSlabWords * sizeof(std::uint64_t), "torture.slabs"),
        arena_{control_, file_, ledger_, reinterpret_cast<std::uint64_t*>(slabs_.data()),
               kSlabWords} {
    control_.header().num_cells.store(cells_,
                                      std::memory_order_release);  // sync: control.num_cells
    roles_.insert(roles_.end(), shape.producers, Role::kProducer);
    roles_.insert(roles_.end(), shape.consumers, Role::kConsumer);
    roles_.insert(roles_.end(), kReapers, Role::kReaper);
    children_.resize(roles_.size());
    random_state = options.seed * 2 + 1;
  }

  Storm run() {
    const std::int64_t start = now_ns();
    for (std::uint32_t i = 0; i < roles_.size(); ++i) start_on(i);
    ::usleep(20'000);  // Until they all work.
    counters().last_commit_ns = now_ns();
    counters().longest_gap_ns = 0;
    while ((storm_.kills < options_.kills || storm_.stops < options_.stops) && !late(start)) {
      ::usleep(static_cast<useconds_t>(200 + draw() % 2000));
      const std::uint64_t left = options_.kills - storm_.kills;
      const std::uint64_t stops_left = options_.stops - storm_.stops;
      if (draw() % (left + stops_left) < stops_left) {
        stop_somebody();
      } else {
        kill_some(std::min<std::uint64_t>(left, 1 + draw() % 4));
      }
    }
    storm_.longest_stall_ms = static_cast<double>(counters().longest_gap_ns) * 1e-6;
    settle();
    audit();
    storm_.seconds = static_cast<double>(now_ns() - start) * 1e-9;
    return storm_;
  }

 private:
  using Child = os::Child<std::function<void()>>;

  Geometry geometry() const { return {kLanes, cells_, 1, std::bit_ceil(cells_)}; }
  Ledger::Counters& counters() const { return ledger_.counters(); }
  Seat& seat_of(std::uint32_t i) const { return counters().seats[i]; }
  bool late(std::int64_t start) const {
    return static_cast<double>(now_ns() - start) * 1e-9 > options_.most_s;
  }

  void start_on(std::uint32_t i) {
    const std::uint64_t seed = draw() | 1;
    children_[i].emplace([this, i, seed] {
      seat = &seat_of(i);
      seat->window = 0;
      random_state = seed;
      Participant<Protocol>(arena_, roles_[i]).run();
    });
  }

  /// Kills who sits there; true if it was in the middle of something.
  bool end(std::uint32_t i) {
    if (!children_[i]) return false;
    children_[i]->send(SIGKILL);
    storm_.crashed += children_[i]->wait() != Child::End::kKilled;
    children_[i].reset();
    const std::uint64_t releasing = seat_of(i).releasing.exchange(0, std::memory_order_relaxed);
    if (releasing != 0) undecided_.insert(releasing - 1);
    return seat_of(i).window.load(std::memory_order_relaxed) != 0;
  }

  void kill_some(std::uint64_t count) {
    for (std::uint64_t k = 0; k < count; ++k) {
      const auto i = static_cast<std::uint32_t>(draw() % roles_.size());
      if (!children_[i]) continue;
      ++storm_.kills;
      storm_.kills_in_window += end(i);
    }
    for (std::uint32_t i = 0; i < roles_.size(); ++i) {
      if (!children_[i]) start_on(i);
    }
  }

  /// Stops somebody who is in the middle of something, if one can be caught at it.
  void stop_somebody() {
    for (int tries = 1;; ++tries) {
      const auto i = static_cast<std::uint32_t>(draw() % roles_.size());
      if (!children_[i]->stop()) {  // It had ended by itself.
        end(i);
        start_on(i);
        continue;
      }
      const bool inside = seat_of(i).window.load(std::memory_order_relaxed) != 0;
      if (inside || tries >= kTriesToStopInside) {
        const std::uint64_t before = counters().committed.load(std::memory_order_relaxed);
        ::usleep(kStopUs);
        ++storm_.stops;
        storm_.stalled_by_stop += counters().committed.load(std::memory_order_relaxed) == before;
      }
      children_[i]->send(SIGCONT);
      if (inside || tries >= kTriesToStopInside) return;
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

  /// Lets consumers and reapers finish what the producers left, then ends them.
  void settle() {
    for (std::uint32_t i = 0; i < roles_.size(); ++i) {
      if (roles_[i] == Role::kProducer) end(i);
    }
    const Deadline deadline = Deadline::in(settle_s_);
    while (cells_in_use() > 0 && !deadline.passed()) ::usleep(1000);
    for (std::uint32_t i = 0; i < roles_.size(); ++i) end(i);
  }

  void audit() {
    storm_.leaked_slabs = cells_in_use();
    storm_.leaked_bytes = storm_.leaked_slabs * kSlabWords * sizeof(std::uint64_t);
    const std::uint64_t items = std::min(counters().next.load(), Ledger::kMostItems);
    for (std::uint64_t item = 0; item < items; ++item) {
      const bool published = ledger_.published()[item] != 0;
      const std::uint8_t commits = ledger_.committed()[item];
      // Who took it saw it published, even where its producer died before it could say so.
      storm_.published += published || commits > 0;
      storm_.committed += commits > 0;
      storm_.committed_twice += commits > 1;
      storm_.lost += published && commits == 0 && !undecided_.contains(item);
    }
    storm_.undecided = undecided_.size();
    storm_.corrupt = counters().corrupt;
    for (std::uint32_t i = 0; i < kLanes; ++i) {
      storm_.redelivered += control_.lane(i).items_redelivered;
    }
  }

  Options options_;
  std::uint32_t cells_;
  double settle_s_;
  os::Fd file_;
  Control control_;
  os::Fd slab_file_;
  os::Mapping slabs_;
  Ledger ledger_;
  Arena arena_;
  std::vector<Role> roles_;
  std::vector<std::optional<Child>> children_;
  std::unordered_set<std::uint64_t> undecided_;
  Storm storm_;
};

}  // namespace

Storm storm(const Options& options) {
  const std::uint32_t of_a_role = std::min(2 * std::thread::hardware_concurrency(), kMostOfARole);
  const Shape shape = options.tight ? kTight : Shape{of_a_role, of_a_role, 64, kSettleS};
  if (options.without.empty()) return Driver<Whole>(options, shape).run();
  if (options.without == "publishing") return Driver<WithoutPublishing>(options, shape).run();
  if (options.without == "taking") return Driver<WithoutTaking>(options, shape).run();
  if (options.without == "re-check") return Driver<WithoutRecheck>(options, shape).run();
  if (options.without == "generation") return Driver<WithoutGeneration>(options, shape).run();
  throw BadArgument("torture: without='" + options.without +
                    "' must be publishing, taking, re-check or generation");
}

}  // namespace flowtrain::torture
