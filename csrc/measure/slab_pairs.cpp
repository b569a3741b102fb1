#include "measure/slab_pairs.hpp"

#include <algorithm>
#include <array>
#include <atomic>
#include <cmath>
#include <functional>
#include <memory>
#include <string>

#include "base/clock.hpp"
#include "base/error.hpp"
#include "channel/cells/release.hpp"
#include "channel/cells/slab_allocator.hpp"
#include "channel/pool.hpp"
#include "memory/carve.hpp"
#include "os/child.hpp"
#include "os/cores.hpp"

namespace flowtrain::measure {
namespace {

using channel::Control;
using channel::LaneHold;
using channel::LaneRole;
using channel::Pool;
using channel::SlabAllocator;

constexpr double kTimeoutS = 30.0;
constexpr std::uint32_t kLag = 16;

/// State that the processes share, followed by their times.
struct alignas(kCacheLine) SharedState {
  std::atomic<std::uint32_t> open;
  std::atomic<std::uint32_t> filled;
  std::atomic<std::uint32_t> done;
  std::atomic<std::uint32_t> left;

  double* times_ns() { return reinterpret_cast<double*>(this + 1); }
};

/// One of the measured processes.
class Worker {
 public:
  Worker(const SlabLoad& load, SharedState& state, std::uint32_t me, const std::string& name)
      : load_(load), state_(state), me_(me) {
    os::pin_to_core(me);
    if (me == 0) {
      pool_ = Pool::create({name, "bench", {"default"}, load.slabs, 2 * load.processes + 2});
      std::vector<memory::SlabClass> classes;
      for (std::uint32_t k = 0; k < load.classes; ++k) {
        classes.push_back({class_bytes(k), slabs_per_class()});
      }
      pool_->add_segment(memory::carve(classes), false);
    } else {
      await(state.open, 1);
      pool_ = Pool::open(name, "bench", Deadline::in(kTimeoutS));
    }
    lane_ = pool_->join(LaneRole::kProducer, 0);
    slabs_.emplace(pool_->control(), pool_->lanes(), lane_->number(), pool_->lane());
    ++state.open;
    await(state.open, load.processes);
  }

  void run() {
    fill();
    ++state_.filled;
    await(state_.filled, load_.processes);
    double* const times_ns = state_.times_ns() + std::size_t{me_} * load_.slices;
    slice();  // Warm-up.
    for (std::uint32_t i = 0; i < load_.slices; ++i) times_ns[i] = slice();
    // Works until all are done, so that all are measured under the same load. The process that made
    // the pool leaves last.
    for (++state_.done; state_.done < load_.processes;) slice();
    ++state_.left;
    await(state_.left, load_.processes);
  }

 private:
  struct Held {
    std::uint32_t cell;
    std::uint32_t bytes;
  };

  static std::uint32_t class_bytes(std::uint32_t k) { return (k + 1) * 4096; }
  std::uint32_t slabs_per_class() const { return load_.slabs / load_.classes; }

  static void await(const std::atomic<std::uint32_t>& count, std::uint32_t wanted) {
    const Deadline deadline = Deadline::in(kTimeoutS);
    while (count < wanted) {
      if (deadline.passed())
        throw PoolTimeout("slab pairs: another process did not follow in time");
    }
  }

  void fill() {
    for (std::uint32_t i = 0; i < kLag; ++i) owed_bytes_[i] = class_bytes(i % load_.classes);
    const auto all = static_cast<std::uint32_t>(load_.fill * slabs_per_class());
    const std::uint32_t share = all * (me_ + 1) / load_.processes - all * me_ / load_.processes;
    for (std::uint32_t i = 0; i < share; ++i) {
      for (std::uint32_t k = 0; k < load_.classes; ++k) {
        held_.push_back({lease(class_bytes(k)), class_bytes(k)});
      }
    }
  }

  std::uint32_t lease(std::uint32_t bytes) {
    const std::uint32_t cell = slabs_->try_lease(bytes);
    if (cell == SlabAllocator::kNone) {
      throw PoolSpace("slab pairs: no slab of " + std::to_string(bytes) + " bytes is free");
    }
    return cell;
  }

  /// Not inline: in a larger function its speed depends on what else that function does.
  [[gnu::noinline]] double slice() {
    const Control& control = pool_->control();
    const Stopwatch watch;
    for (std::uint32_t i = 0; i < load_.pairs; ++i) {
      Held& held = held_[draw(held_.size())];
      if (load_.by_consumer) {
        channel::release_cell(control, held.cell);
      } else {
        slabs_->release(held.cell, held.bytes);
      }
      std::swap(owed_bytes_[i % kLag], held.bytes);
      held.cell = lease(held.bytes);
    }
    return static_cast<double>(watch.elapsed_ns()) / load_.pairs;
  }

  /// Random number below `end`.
  std::uint64_t draw(std::uint64_t end) {  // xorshift64
    random_ ^= random_ << 13;
    random_ ^= random_ >> 7;
    random_ ^= random_ << 17;
    return (random_ >> 32) * end >> 32;
  }

  const SlabLoad& load_;
  SharedState& state_;
  std::uint32_t me_;
  std::shared_ptr<Pool> pool_;
  std::unique_ptr<LaneHold> lane_;
  std::optional<SlabAllocator> slabs_;
  std::vector<Held> held_;
  std::array<std::uint32_t, kLag> owed_bytes_{};
  std::uint64_t random_ = 0x9E3779B97F4A7C15 + me_;
};

}  // namespace

std::vector<double> slab_pairs_ns(const SlabLoad& load) {
  const std::string what = "slab pairs: ";
  if (load.classes < 1 || load.processes < 1 || load.pairs < 1 || load.slices < 1) {
    throw BadArgument(what + "classes, processes, pairs and slices must be at least 1");
  }
  const double slabs_per_class = std::floor(static_cast<double>(load.slabs) / load.classes);
  if (load.fill * slabs_per_class < load.processes ||
      load.fill * slabs_per_class > slabs_per_class - 1) {
    throw BadArgument(what + "fill=" + std::to_string(load.fill) + " of " +
                      std::to_string(load.slabs) + " slabs in " + std::to_string(load.classes) +
                      " classes leaves a process without a slab, or a class without a free one");
  }
  const std::size_t results = std::size_t{load.processes} * load.slices;
  const std::size_t bytes = sizeof(SharedState) + results * sizeof(double);
  const os::Fd fd = os::sealed_memfd("bench.state", bytes);
  const os::Mapping shared(fd, bytes, "bench.state");
  SharedState& state = *reinterpret_cast<SharedState*>(shared.data());
  const std::string name = "bench-slab-" + std::to_string(::getpid());
  std::vector<os::Child<std::function<void()>>> children;
  for (std::uint32_t i = 0; i < load.processes; ++i) {
    children.emplace_back([&load, &state, &name, i] { Worker(load, state, i, name).run(); });
  }
  bool done = true;
  for (auto& child : children) done &= child.wait() == decltype(children)::value_type::End::kDone;
  if (!done) throw PoolCorrupt(what + "a process ended early; stderr has its reason");
  return {state.times_ns(), state.times_ns() + results};
}

}  // namespace flowtrain::measure
