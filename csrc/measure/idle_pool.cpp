#include "measure/idle_pool.hpp"

#include <sys/resource.h>

#include <algorithm>
#include <csignal>

#include "base/clock.hpp"
#include "base/error.hpp"
#include "channel/consumer.hpp"
#include "channel/producer.hpp"
#include "os/child.hpp"
#include "os/shared_zeros.hpp"

namespace flowtrain::measure {
namespace {

using channel::Consumer;
using channel::Control;
using channel::Layout;
using channel::Pool;
using channel::Producer;

constexpr std::uint64_t kSlabBytes = 4096;
constexpr double kTimeoutS = 30.0;

/// State that the parent and its children share.
struct SharedState {
  std::atomic<std::int32_t> holder;  ///< Process that holds a slab; 0 once the slab is free.
  std::atomic<bool> ready;
  double result;
};

template <class Condition>
void await(const char* what, Condition&& condition) {
  const Deadline deadline = Deadline::in(kTimeoutS);
  while (!condition()) {
    if (deadline.passed()) {
      throw PoolTimeout(std::string("idle pool: ") + what + " did not happen within " +
                        std::to_string(kTimeoutS) + " s");
    }
    ::usleep(20);
  }
}

std::string pool_name() { return "bench-idle-" + std::to_string(::getpid()); }

std::shared_ptr<Pool> make_pool(const std::string& name) {
  auto pool = Pool::create({name, "bench", {"default"}, 8, 64});
  pool->add_segment(memory::carve({{kSlabBytes, 8}}), true);
  return pool;
}

bool all_free(const Control& control) {
  for (std::uint32_t c = 0; c < control.num_cells(); ++c) {
    const auto word = control.word(c).load(std::memory_order_acquire);  // sync: cell.word
    if (lockfree::state_of(word) != lockfree::CellState::kFree) return false;
  }
  return true;
}

}  // namespace

std::vector<double> reclaim_times_ms(std::uint32_t kills) {
  const os::SharedZeros zeros(sizeof(SharedState), "idle pool: state");
  SharedState& state = *reinterpret_cast<SharedState*>(zeros.data());
  const std::string name = pool_name();
  // Kills the holder, and waits until the monitor of this child's pool handle has freed the slab.
  os::Child killer([&] {
    const auto pool = make_pool(name);
    state.ready = true;
    for (std::uint32_t k = 0; k < kills; ++k) {
      await("a lease", [&] { return state.holder != 0; });
      const Stopwatch watch;
      ::kill(state.holder, SIGKILL);
      await("a reclaim", [&] { return all_free(pool->control()); });
      state.result = static_cast<double>(watch.elapsed_ns()) * 1e-6;
      state.holder = 0;
    }
  });
  await("a pool", [&] { return state.ready.load(); });
  std::vector<double> times;
  for (std::uint32_t k = 0; k < kills; ++k) {
    os::Child holder([&] {
      const auto pool = Pool::open(name, "holder", Deadline::in(kTimeoutS));
      const auto producer =
          std::make_shared<Producer>(pool, "default", std::nullopt, Producer::Credits{});
      const Layout layout{0, 1, {1}, 1};
      const auto lease = producer->lease(layout, Deadline::in(kTimeoutS));
      ::usleep(static_cast<useconds_t>(30'000));  // Until the other handle has seen it join.
      state.holder = ::getpid();
      for (;;) ::pause();
    });
    if (holder.wait() != decltype(holder)::End::kKilled)
      throw PoolCorrupt("idle pool: the process that holds a slab ended early");
    await("a reclaim", [&] { return state.holder == 0; });
    times.push_back(state.result);
  }
  killer.wait();
  std::sort(times.begin(), times.end());
  return times;
}

double idle_cpu_percent(double seconds) {
  const os::SharedZeros zeros(sizeof(SharedState), "idle pool: state");
  SharedState& state = *reinterpret_cast<SharedState*>(zeros.data());
  const std::string name = pool_name();
  os::Child waiting([&] {
    const auto pool = make_pool(name);
    const auto consumer = std::make_shared<Consumer>(pool, "default");
    const auto used_s = [] {
      rusage usage{};
      ::getrusage(RUSAGE_SELF, &usage);
      const auto of = [](const timeval& t) {
        return static_cast<double>(t.tv_sec) + static_cast<double>(t.tv_usec) * 1e-6;
      };
      return of(usage.ru_utime) + of(usage.ru_stime);
    };
    const double before = used_s();
    try {
      consumer->get(Deadline::in(seconds));
    } catch (const PoolTimeout&) {  // Expected: there is no producer.
      state.result = (used_s() - before) / seconds * 100.0;
      state.ready = true;
    }
  });
  waiting.wait();
  if (!state.ready) throw PoolCorrupt("idle pool: the process that waits ended early");
  return state.result;
}

}  // namespace flowtrain::measure
