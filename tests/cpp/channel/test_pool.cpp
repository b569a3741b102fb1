// A pool used by threads instead of processes, so that the sanitizers see their interaction: two
// handles of one pool, each with producers and consumers, and segments that are added and dropped.

#include <fcntl.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <csignal>
#include <cstring>
#include <filesystem>
#include <thread>
#include <vector>

#include "base/error.hpp"
#include "channel/consumer.hpp"
#include "channel/pool.hpp"
#include "channel/pool_names.hpp"
#include "channel/producer.hpp"
#include "channel/telemetry/inspect.hpp"
#include "check.hpp"
#include "memory/carve.hpp"
#include "os/folder.hpp"
#include "os/removal_on_signal.hpp"

using namespace flowtrain;
using namespace flowtrain::channel;

namespace {

std::atomic<bool> out_of_descriptors{false};

}  // namespace

/// Replaces the C library's: makes the construction of a monitor fail.
extern "C" int eventfd(unsigned int count, int flags) noexcept {
  if (out_of_descriptors) return errno = EMFILE, -1;
  return static_cast<int>(::syscall(SYS_eventfd2, count, flags));
}

namespace {

pid_t fake_pid = 0;

}  // namespace

/// Replaces the C library's: a child in another PID namespace may have its parent's number.
extern "C" pid_t getpid() noexcept {
  return fake_pid != 0 ? fake_pid : static_cast<pid_t>(::syscall(SYS_getpid));
}

namespace {

std::string unique_name(const char* what) {
  return std::string("cpp-") + what + "-" + std::to_string(::getpid());
}

Layout bytes_of(std::uint32_t bytes) { return {8, 1, {bytes, 0, 0, 0}, bytes}; }

/// Producers of both handles lease varying sizes, of classes and on demand, and write and shrink
/// every third one; consumers of both check every byte. The sum of keys shows that each item came
/// once.
void items_cross_between_handles_intact_and_once() {
  constexpr int kEach = 400, kProducers = 2;
  const std::string name = unique_name("cross");
  const auto here = Pool::create({name, "here", {"default"}, 64, 32});
  const auto there = Pool::open(name, "there", Deadline::in(5));
  here->add_segment(memory::carve({{4096, 3}, {16384, 2}}), false);
  there->add_segment(memory::carve_on_demand(64 << 10, 16), false);
  std::atomic<std::uint64_t> sum{0};
  std::atomic<int> taken{0};
  std::vector<std::jthread> threads;
  for (int p = 0; p < kProducers; ++p) {
    threads.emplace_back([&, p] {
      const auto producer = std::make_shared<Producer>(p % 2 == 0 ? here : there, "default",
                                                       std::nullopt, Producer::Credits{20000, 3});
      for (std::uint64_t i = 0; i < kEach; ++i) {
        const std::uint64_t key = i * kProducers + static_cast<std::uint64_t>(p);
        const auto size = static_cast<std::uint32_t>(1 + key * 2654435761 % 16384);
        const bool shrinks = key % 3 == 0;
        const auto lease = producer->lease(bytes_of(shrinks ? 16384 : size), Deadline::in(60));
        std::memset(lease->data(), static_cast<int>(key & 0xff), lease->layout().bytes);
        if (shrinks) lease->shrink(bytes_of(size));
        lease->publish({key, ~key});
      }
    });
  }
  for (int c = 0; c < 2; ++c) {
    threads.emplace_back([&, c] {
      const auto consumer = std::make_shared<Consumer>(c == 0 ? there : here, "default");
      while (taken < kEach * kProducers) {
        const auto item = consumer->try_get();
        if (!item) {
          std::this_thread::yield();
          continue;
        }
        const Descriptor& d = item->descriptor();
        CHECK(d.key_high == ~d.key_low && d.bytes == 1 + d.key_low * 2654435761 % 16384);
        for (std::uint64_t i = 0; i < d.bytes; ++i) {
          CHECK(item->data()[i] == static_cast<std::byte>(d.key_low & 0xff));
        }
        sum += d.key_low;
        ++taken;
        item->release();
      }
    });
  }
  threads.clear();
  constexpr std::uint64_t kAll = kEach * kProducers;
  CHECK(taken == static_cast<int>(kAll) && sum == kAll * (kAll - 1) / 2);
  for (const SegmentInfo& segment : segment_infos(here->control()))
    CHECK(segment.slabs_in_use == 0);
  there->close();
  here->close();
}

/// The owner of a segment leaves while others lease from it: no lease is of unmapped memory, and
/// the next owner reuses the entry, one generation later.
void a_segment_may_end_while_others_lease_from_it() {
  const std::string name = unique_name("leave");
  const auto here = Pool::create({name, "here", {"default"}, 4, 32});
  std::atomic<bool> stop{false};
  std::atomic<int> leased{0};
  std::jthread user([&] {
    const auto producer =
        std::make_shared<Producer>(here, "default", std::nullopt, Producer::Credits{});
    while (!stop) {
      try {
        const auto lease = producer->lease(bytes_of(4096), Deadline::in(0.001));
        std::memset(lease->data(), 1, 4096);
        ++leased;
      } catch (const PoolSpace&) {  // No owner at the moment.
      } catch (const PoolTimeout&) {
      }
    }
  });
  for (int round = 0; round < 12; ++round) {
    const auto owner = Pool::open(name, "owner", Deadline::in(5));
    const int before = leased;
    // All four cells: the former owner must have left.
    for (bool added = false; !added;) {
      try {
        owner->add_segment(memory::carve({{4096, 4}}), false);
        added = true;
      } catch (const PoolSpace&) {
        std::this_thread::yield();
      }
    }
    while (leased == before) std::this_thread::yield();
    owner->close();
  }
  stop = true;
  user.join();
  CHECK(memory::generation_of(here->control().cell(0).slab) == 12);
  here->close();
}

/// Not a death: no handle reports one.
void a_failed_open_leaves_its_lane() {
  const auto pool = Pool::create({unique_name("fails"), "main", {"default"}, 16, 8});
  out_of_descriptors = true;
  CHECK_THROWS(Pool::open(pool->name(), "other", Deadline::in(5)), SystemCallError);
  out_of_descriptors = false;
  CHECK(pool->control().lane(1).state == LaneState::kLeft);
  pool->close();
}

/// A removal leaves the folder if a handle creates its socket there at the same time.
void the_last_handle_of_a_removed_pool_removes_its_folder() {
  const std::string path = os::runtime_folder() + "/" + unique_name("removed");
  const auto maker = Pool::create({unique_name("removed"), "main", {"default"}, 16, 8});
  const auto other = Pool::open(maker->name(), "other", Deadline::in(5));
  std::filesystem::remove(path + "/control");
  other->add_segment(memory::carve({{64, 1}}), false);
  CHECK(std::filesystem::exists(path));
  other->close();
  CHECK(!std::filesystem::exists(path));
  maker->close();
}

/// As when a device registers much memory.
void a_death_is_reported_while_a_segment_is_being_mapped() {
  const auto pool = Pool::create({unique_name("slow"), "main", {"default"}, 16, 8});
  const auto owner = Pool::open(pool->name(), "owner", Deadline::in(5));
  std::atomic<bool> mapping{false}, done{false};
  pool->segments().attach("test", [&](const memory::Memory&, const std::string&) {
    mapping = true;
    while (!done) ::usleep(1000);
    return std::shared_ptr<void>();
  });
  owner->add_segment(memory::carve({{64, 1}}), false);
  while (!mapping) ::usleep(1000);
  {
    const os::Fd folder = os::open_pool_folder(pool->name());
    const os::Fd control = os::open_file(os::path_in(folder, "control"));
    Lanes lanes(pool->control(), control);  // As of another process, which ends here.
    lanes.join(LaneRole::kPool, 0, "dead", pool->name());
  }
  const auto dead = pool->wait_dead(Deadline::in(20));
  done = true;
  CHECK(dead && dead->label == "dead");
  owner->close();
  pool->close();
}

/// Without file descriptors the pool cannot be read.
void a_pool_that_cannot_be_read_does_not_count_as_dead() {
  const auto pool = Pool::create({unique_name("alive"), "main", {"default"}, 16, 8});
  rlimit before{};
  CHECK(::getrlimit(RLIMIT_NOFILE, &before) == 0);
  const rlimit few{64, before.rlim_max};
  CHECK(::setrlimit(RLIMIT_NOFILE, &few) == 0);
  std::vector<os::Fd> all;
  do {
    all.emplace_back(::open("/dev/null", O_RDONLY | O_CLOEXEC));
  } while (all.back());
  CHECK_THROWS(list_pools(), SystemCallError);
  all.resize(all.size() - 2);  // One for the lock of the runtime folder.
  CHECK(!unlink_pool(pool->name(), true));
  all.clear();
  CHECK(::setrlimit(RLIMIT_NOFILE, &before) == 0);
  CHECK(pool_exists(pool->name()));
  pool->close();
}

[[maybe_unused]] void a_forked_child_with_its_parents_process_id_leaves_its_pool_alone() {
  const auto pool = Pool::create({unique_name("namespace"), "main", {"default"}, 16, 8});
  os::remove_pools_on_signals();
  const std::string path = os::runtime_folder() + "/" + pool->name();
  const pid_t parent = ::getpid(), child = ::fork();
  if (child == 0) {
    fake_pid = parent;
    ::raise(SIGTERM);
    ::_exit(0);
  }
  int status = 0;
  CHECK(::waitpid(child, &status, 0) == child && WTERMSIG(status) == SIGTERM);
  for (const auto& file : std::filesystem::directory_iterator(path)) {
    CHECK(file.path().filename() == "control");  // Also no mark that its creator has ended.
  }
  CHECK(pool_exists(pool->name()));
  pool->close();
}

}  // namespace

int main() {
#ifndef __SANITIZE_THREAD__  // It wraps signal handlers, and does not end the process as they ask.
  a_forked_child_with_its_parents_process_id_leaves_its_pool_alone();
#endif
  a_death_is_reported_while_a_segment_is_being_mapped();
  a_pool_that_cannot_be_read_does_not_count_as_dead();
  the_last_handle_of_a_removed_pool_removes_its_folder();
  a_failed_open_leaves_its_lane();
  items_cross_between_handles_intact_and_once();
  a_segment_may_end_while_others_lease_from_it();
}
