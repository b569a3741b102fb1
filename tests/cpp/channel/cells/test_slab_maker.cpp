// Slabs on demand: a lease that fits succeeds, whatever was leased or shrunk before and whoever
// died.

#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <csignal>
#include <cstring>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <random>
#include <string>
#include <vector>

#include "base/error.hpp"
#include "channel/pool.hpp"
#include "channel/producer.hpp"
#include "check.hpp"
#include "memory/carve.hpp"
#include "os/child.hpp"
#include "os/shared_zeros.hpp"

using namespace flowtrain;
using namespace flowtrain::channel;

namespace {

constexpr std::uint64_t kPages = 64;

std::string unique_name(const char* what) {
  return std::string("cpp-") + what + "-" + std::to_string(::getpid());
}

Layout bytes_of(std::uint64_t bytes) {
  return {8, 1, {static_cast<std::uint32_t>(bytes), 0, 0, 0}, bytes};
}

std::shared_ptr<Producer> producer_of(const std::shared_ptr<Pool>& pool) {
  return std::make_shared<Producer>(pool, "default", std::nullopt, Producer::Credits{});
}

using Slabs = std::map<std::uint64_t, std::uint64_t>;  // Bytes by offset.

/// All slabs, or those in use. They never overlap, whether in use or free.
Slabs slabs_of(const Control& control, bool only_used) {
  Slabs slabs;
  const SegmentEntry& entry = control.segment(0);
  for (std::uint32_t c = 0; c < entry.num_slabs; ++c) {
    const bool free = lockfree::state_of(control.word(c)) == lockfree::CellState::kFree;
    const Cell& cell = control.cell(c);
    const std::uint64_t bytes = cell.slab_bytes;
    if (bytes == 0 || (only_used && free)) continue;
    CHECK(slabs.emplace(memory::offset_of(cell.slab), bytes).second);
  }
  std::uint64_t end = 0;
  for (const auto& [offset, bytes] : slabs) {
    CHECK(offset >= end && offset % kPageBytes == 0 && bytes % kPageBytes == 0);
    end = offset + bytes;
  }
  CHECK(end <= entry.slabs_end && end <= kPages * kPageBytes);
  return slabs;
}

std::uint64_t longest_gap(const Slabs& used) {
  std::uint64_t end = 0, longest = 0;
  for (const auto& [offset, bytes] : used) {
    longest = std::max(longest, offset - end);
    end = offset + bytes;
  }
  return std::max(longest, kPages * kPageBytes - end);
}

/// Shrinks a lease to a part of its bytes. What is freed is free at once.
void shrink(Lease& lease, std::uint64_t bytes) {
  const Control& control = lease.pool().control();
  const std::uint64_t offset = memory::offset_of(lease.address());
  const std::uint64_t before = slabs_of(control, true).at(offset);
  lease.shrink(bytes_of(bytes));
  const std::uint64_t after = slabs_of(control, true).at(offset);
  CHECK(after == std::min(before, memory::slab_bytes_for(bytes)));
  std::uint64_t sum = 0;
  for (const auto& [at, size] : slabs_of(control, false)) sum += size;
  CHECK(control.segment(0).slab_bytes == sum);
}

/// Random sizes, held for random times and sometimes shrunk: a lease succeeds exactly if enough
/// consecutive pages and a cell are free.
void a_lease_succeeds_wherever_it_fits() {
  for (const std::uint32_t cells : {64U, 7U}) {
    const auto pool = Pool::create({unique_name("fit"), "main", {"default"}, cells, 8});
    pool->add_segment(memory::carve_on_demand(kPages * kPageBytes, cells), false);
    const auto producer = producer_of(pool), other = producer_of(pool);
    std::mt19937 random(5);
    std::vector<std::shared_ptr<Lease>> held;
    int refused = 0, whole = 0, shrunk = 0;
    for (int step = 0; step < 20000; ++step) {
      // Phases with few large, and with many small ones.
      const std::uint64_t most = step / 500 % 3 == 0 ? kPages : step / 500 % 3 == 1 ? 12 : 3;
      if (!held.empty() && random() % 9 < 4) {
        const auto which = held.begin() + static_cast<std::ptrdiff_t>(random() % held.size());
        (*which)->abort();
        held.erase(which);
        continue;
      }
      if (!held.empty() && random() % 5 == 0) {
        Lease& lease = *held[random() % held.size()];
        shrink(lease, random() % (lease.layout().bytes + 1));
        ++shrunk;
      }
      if (random() % 50 == 0) held.clear();
      const std::uint64_t bytes = 1 + random() % (most * kPageBytes);
      const Slabs used = slabs_of(pool->control(), true);
      const bool fits = round_up(bytes, kPageBytes) <= longest_gap(used) && used.size() < cells;
      auto lease = (random() % 2 == 0 ? producer : other)->try_lease(bytes_of(bytes));
      CHECK((lease != nullptr) == fits);
      refused += !fits;
      if (fits && bytes > (kPages - 1) * kPageBytes) {
        ++whole;  // Nothing is left of the slabs before it.
        CHECK(pool->control().segment(0).num_slabs == 1);
      }
      if (lease) held.push_back(std::move(lease));
      slabs_of(pool->control(), false);
    }
    CHECK(refused > 500 && whole > 0 && shrunk > 500);
    held.clear();
    pool->close();
  }
}

/// As a process that stops or dies there. The item is short in any case.
void a_slab_keeps_its_size_while_another_process_makes_one() {
  const auto pool = Pool::create({unique_name("locked"), "main", {"default"}, 8, 8});
  const auto other = Pool::open(pool->name(), "other", Deadline::in(5));
  pool->add_segment(memory::carve_on_demand(kPages * kPageBytes, 8), false);
  const auto lease = producer_of(pool)->lease(bytes_of(kPages * kPageBytes), Deadline::in(5));
  CHECK(other->lanes().try_lock(PoolLock::kAssignment));
  lease->shrink(bytes_of(9 * kPageBytes));
  other->lanes().unlock(PoolLock::kAssignment);
  CHECK(pool->control().cell(0).slab_bytes == kPages * kPageBytes);
  CHECK(pool->control().cell(0).item_bytes == 9 * kPageBytes);
  lease->shrink(bytes_of(5 * kPageBytes));
  CHECK(pool->control().cell(0).slab_bytes == 5 * kPageBytes);
  lease->abort();
  other->close();
  pool->close();
}

/// Leases slabs of random sizes, shrinks some, and checks that nobody else writes to them, until it
/// is killed.
[[noreturn]] void lease_for_ever(const std::string& name, std::uint64_t seed) {
  const auto pool = Pool::open(name, "worker", Deadline::in(30));
  const auto producer = producer_of(pool);
  std::mt19937_64 random(seed);
  std::vector<std::shared_ptr<Lease>> held;
  for (;;) {
    auto lease = producer->try_lease(bytes_of(8 * (1 + random() % (16 * kPageBytes / 8))));
    if (lease) {
      // The first and the last word of a slab are enough to see an overlap of pages.
      for (const std::uint64_t at : {std::uint64_t{0}, lease->layout().bytes - 8}) {
        std::memcpy(lease->data() + at, &seed, sizeof(seed));
      }
      held.push_back(std::move(lease));
    }
    if (held.empty() || random() % 3 != 0) continue;
    std::swap(held[random() % held.size()], held.back());
    if (random() % 2 == 0) {
      const std::uint64_t bytes = 8 * (1 + random() % (held.back()->layout().bytes / 8));
      held.back()->shrink(bytes_of(bytes));
      std::memcpy(held.back()->data() + bytes - 8, &seed, sizeof(seed));
      continue;
    }
    for (const std::uint64_t at : {std::uint64_t{0}, held.back()->layout().bytes - 8}) {
      if (std::memcmp(held.back()->data() + at, &seed, sizeof(seed)) != 0) ::_exit(9);
    }
    held.pop_back();
  }
}

/// Shared by the processes of kills_lose_no_memory_and_no_cells.
struct Signals {
  std::atomic<bool> ready;
  std::atomic<bool> killed;
};

void await(const std::atomic<bool>& signal) {
  const Deadline deadline = Deadline::in(60);
  while (!signal) {
    CHECK(!deadline.passed());
    ::usleep(200);
  }
}

/// Makes the pool, checks its slabs while workers use it, and once all were killed that its memory
/// is whole.
void keep(const std::string& name, Signals& signals) {
  constexpr std::uint32_t kCells = 24;
  const auto pool = Pool::create({name, "keeper", {"default"}, kCells, 64});
  pool->add_segment(memory::carve_on_demand(kPages * kPageBytes, kCells), false);
  signals.ready = true;
  const Deadline deadline = Deadline::in(60);
  while (!signals.killed) {
    CHECK(!deadline.passed());
    if (!pool->lanes().try_lock(PoolLock::kAssignment)) continue;
    slabs_of(pool->control(), false);  // None changes meanwhile.
    pool->lanes().unlock(PoolLock::kAssignment);
    ::usleep(500);
  }
  const auto producer = producer_of(pool);
  producer->lease(bytes_of(kPages * kPageBytes), Deadline::in(30))->abort();
  std::vector<std::shared_ptr<Lease>> all;
  for (std::uint32_t i = 0; i < kCells; ++i) {
    all.push_back(producer->lease(bytes_of(1), Deadline::in(30)));
  }
  all.clear();
  pool->close();
}

/// Three processes, killed at random instants and replaced.
void kills_lose_no_memory_and_no_cells() {
  using Process = os::Child<std::function<void()>>;
  const auto name = unique_name("kills");
  const os::SharedZeros zeros(sizeof(Signals), "signals");
  Signals& signals = *reinterpret_cast<Signals*>(zeros.data());
  Process keeper([&] { keep(name, signals); });
  await(signals.ready);
  std::mt19937_64 random(11);
  std::vector<std::optional<Process>> workers(3);
  const auto kill = [](std::optional<Process>& worker) {
    if (!worker) return;
    worker->send(SIGKILL);
    CHECK(worker->wait() == Process::End::kKilled);  // It fails if its slab was overwritten.
    worker.reset();
  };
  for (int kills = 0; kills < 150; ++kills) {
    for (auto& worker : workers) {
      if (!worker) worker.emplace([&name, seed = random()] { lease_for_ever(name, seed); });
    }
    ::usleep(static_cast<useconds_t>(1000 + random() % 9000));
    kill(workers[random() % workers.size()]);
  }
  for (auto& worker : workers) kill(worker);
  signals.killed = true;
  CHECK(keeper.wait() == Process::End::kDone);
}

}  // namespace

int main() {
  a_slab_keeps_its_size_while_another_process_makes_one();
  kills_lose_no_memory_and_no_cells();
  a_lease_succeeds_wherever_it_fits();
}
