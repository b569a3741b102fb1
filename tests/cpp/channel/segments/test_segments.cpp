// Segments of a handle: which addresses resolve, what is mapped when, and hooks that fail.

#include <sys/resource.h>
#include <unistd.h>

#include <atomic>
#include <filesystem>
#include <fstream>
#include <memory>
#include <optional>
#include <string>

#include "base/error.hpp"
#include "channel/consumer.hpp"
#include "channel/pool.hpp"
#include "channel/producer.hpp"
#include "channel/telemetry/inspect.hpp"
#include "check.hpp"
#include "memory/carve.hpp"
#include "os/folder.hpp"

using namespace flowtrain;
using namespace flowtrain::channel;

namespace {

memory::Carving one_page() { return memory::carve({{4096, 1}}); }

/// map_all alone may give up on an owner that answers late.
void map(Segments& segments, std::uint32_t number) {
  const Deadline deadline = Deadline::in(30);
  while (!segments.memory_of(number) && !deadline.passed()) segments.map_all(deadline, {});
  CHECK(segments.memory_of(number));
}

std::string unique_name(const char* what) {
  return std::string("cpp-") + what + "-" + std::to_string(::getpid());
}

void a_hook_that_fails_for_a_present_segment_is_forgotten() {
  const auto pool = Pool::create({unique_name("forgets"), "main", {"default"}, 16, 8});
  pool->add_segment(one_page(), false);
  const auto refuse = [](const memory::Memory&, const std::string& what) -> std::shared_ptr<void> {
    throw SystemCallError(what + ": refused");
  };
  CHECK_THROWS(pool->segments().attach("test", refuse), SystemCallError);
  pool->add_segment(one_page(), false);
  CHECK(segment_infos(pool->control()).size() == 2);
  pool->close();
}

void a_hook_that_fails_for_a_new_segment_fails_add_segment() {
  const auto pool = Pool::create({unique_name("fails"), "main", {"default"}, 16, 8});
  pool->segments().attach(
      "test", [](const memory::Memory&, const std::string& what) -> std::shared_ptr<void> {
        throw SystemCallError(what + ": refused");
      });
  CHECK_THROWS(pool->add_segment(one_page(), false), SystemCallError);
  CHECK(segment_infos(pool->control()).empty());
  pool->close();
}

void a_lease_that_times_out_names_the_segment_that_cannot_be_mapped() {
  const auto pool = Pool::create({unique_name("why"), "main", {"default"}, 16, 8});
  const auto owner = Pool::open(pool->name(), "other", Deadline::in(5));
  pool->segments().attach(
      "test", [](const memory::Memory&, const std::string& what) -> std::shared_ptr<void> {
        throw SystemCallError(what + ": refused");
      });
  const std::uint32_t number = owner->add_segment(one_page(), false);
  while (!pool->segments().refresh()) ::usleep(1000);
  const auto producer = std::make_shared<Producer>(pool, "default", number, Producer::Credits{});
  const std::string segment = "segment '" + pool->name() + ".1'";
  const std::string wanted =
      segment + " is not mapped here, because that failed: " + segment + ": refused";
  // While the mapper thread retries, the message lacks the reason.
  std::string said;
  const Deadline deadline = Deadline::in(10);
  while (said.find(wanted) == std::string::npos && !deadline.passed()) {
    try {
      producer->lease({8, 1, {16, 0, 0, 0}, 16}, Deadline::in(0));
    } catch (const PoolTimeout& error) {
      said = error.what();
    }
  }
  CHECK(said.find(wanted) != std::string::npos);
  owner->close();
  pool->close();
}

/// Otherwise its items would be lost if the owner died before the next use.
void a_failed_mapping_is_retried_in_the_background() {
  const auto pool = Pool::create({unique_name("retry"), "main", {"default"}, 16, 8});
  const auto owner = Pool::open(pool->name(), "other", Deadline::in(5));
  rlimit limit{};
  CHECK(::getrlimit(RLIMIT_NOFILE, &limit) == 0);
  std::atomic<bool> refused = false;
  pool->segments().attach("test", [&](const memory::Memory&, const std::string& what) {
    if (!refused) {
      // Now the owner cannot get a new request either.
      const rlimit none{3, limit.rlim_max};
      CHECK(::setrlimit(RLIMIT_NOFILE, &none) == 0);
      refused = true;
      throw SystemCallError(what + ": refused");
    }
    return std::shared_ptr<void>();
  });
  const std::uint32_t number = owner->add_segment(one_page(), false);
  while (!refused) ::usleep(1000);
  ::usleep(50'000);  // The next attempts have failed by now.
  CHECK(::setrlimit(RLIMIT_NOFILE, &limit) == 0);
  const Deadline deadline = Deadline::in(10);
  while (!pool->segments().memory_of(number) && !deadline.passed()) ::usleep(1000);
  CHECK(pool->segments().memory_of(number));
  owner->close();
  pool->close();
}

/// Each attempt leases and releases the free cell, so the cell's generation counts attempts.
void a_lease_sleeps_while_another_thread_is_in_the_hook() {
  const auto pool = Pool::create({unique_name("sleeps"), "main", {"default"}, 2, 8});
  const auto owner = Pool::open(pool->name(), "other", Deadline::in(5));
  std::atomic<bool> slow = false, entered = false, leave = false;
  owner->add_segment(one_page(), false);
  map(pool->segments(), 1);
  pool->segments().attach("test", [&](const memory::Memory&, const std::string&) {
    entered = slow.load();
    while (slow && !leave) ::usleep(1000);
    return std::shared_ptr<void>();
  });
  slow = true;
  owner->add_segment(one_page(), false);
  while (!entered) ::usleep(1000);
  // The entry of the first segment is reused, and this handle cannot map the new segment yet.
  owner->drop_segment(1);
  CHECK(owner->add_segment(one_page(), false) == 1);
  const std::uint32_t cell = pool->control().cells_of(pool->control().segment(0)).first;
  const auto lives = [&] { return lockfree::generation_of(pool->control().word(cell)); };
  const std::uint64_t before = lives();
  const auto producer = std::make_shared<Producer>(pool, "default", 1, Producer::Credits{});
  const Deadline deadline = Deadline::in(kOwnerResponseS + 0.05);
  CHECK_THROWS(producer->lease({8, 1, {16, 0, 0, 0}, 16}, deadline), PoolTimeout);
  const std::uint64_t attempts = lives() - before;
  leave = true;
  CHECK(attempts > 0 && attempts < 1000 * (kOwnerResponseS + 0.05) + 2);
  owner->close();
  pool->close();
}

void a_lease_waits_for_a_segment_that_is_being_made() {
  const auto pool = Pool::create({unique_name("making"), "main", {"default"}, 16, 8});
  const auto owner = Pool::open(pool->name(), "other", Deadline::in(5));
  const auto carving = memory::carve({{8192, 1}});
  const auto claimed = owner->segments().claim(carving, owner->lane(), {});
  const auto producer =
      std::make_shared<Producer>(pool, "default", std::nullopt, Producer::Credits{});
  const auto bytes = [](std::uint32_t n) { return Layout{8, 1, {n, 0, 0, 0}, n}; };
  CHECK(producer->try_lease(bytes(8192)) == nullptr);
  CHECK_THROWS(producer->lease(bytes(8193), Deadline::in(30)), BadArgument);
  std::string said;
  try {
    producer->lease(bytes(8192), Deadline::in(0.01));
  } catch (const PoolTimeout& error) {
    said = error.what();
  }
  CHECK(said.find(".1' is still being made by its owner 'other' (pid ") != std::string::npos);
  std::jthread maker([&] {
    ::usleep(20'000);
    owner->segments().make(*claimed, carving, false);
  });
  CHECK(producer->lease(bytes(8192), Deadline::in(30))->layout().bytes == 8192);
  maker.join();
  // It ends with its owner.
  owner->drop_segment(1);
  CHECK(owner->segments().claim(carving, owner->lane(), {}));
  std::jthread closer([&] {
    ::usleep(20'000);
    owner->close();
  });
  CHECK_THROWS(producer->lease(bytes(1), Deadline::in(30)), PoolSpace);
  closer.join();
  pool->close();
}

void add_segment_fails_if_its_entry_changes() {
  const auto pool = Pool::create({unique_name("damaged"), "main", {"default"}, 16, 8});
  pool->segments().attach(
      "test", [&](const memory::Memory&, const std::string&) -> std::shared_ptr<void> {
        pool->control().segment(0).word = segment_word(SegmentState::kDead, 1, pool->lane());
        return nullptr;
      });
  CHECK_THROWS(pool->add_segment(one_page(), false), PoolCorrupt);
  CHECK(segment_infos(pool->control()).empty());
  pool->close();
}

void memory_is_handed_out_by_nonce_and_generation() {
  const auto pool = Pool::create({unique_name("serve"), "main", {"default"}, 1, 8});
  const std::string path = os::runtime_folder() + "/" + pool->name() + "/0.sock";
  const std::uint64_t nonce = pool->control().header().nonce;
  const auto has = [&](std::uint64_t of_pool, std::uint16_t generation, std::uint8_t segment) {
    const memory::Address address = memory::make_address(generation, segment, 0);
    std::optional<os::Exported> found;
    while (!found) found = os::receive_exported(path, {of_pool, address});  // It may time out.
    return static_cast<bool>(*found);
  };
  pool->add_segment(one_page(), false);
  CHECK(has(nonce, 1, 1) && !has(nonce + 1, 1, 1) && !has(nonce, 2, 1));
  CHECK(!has(nonce, 1, 0) && !has(nonce, 1, 2) && !has(nonce, 1, 255));
  pool->drop_segment(1);
  pool->add_segment(one_page(), false);
  CHECK(!has(nonce, 1, 1) && has(nonce, 2, 1));
  pool->close();
}

int open_memory_of(const Pool& pool) {
  int count = 0;
  for (const auto& entry : std::filesystem::directory_iterator("/proc/self/fd")) {
    std::error_code gone;
    const std::string target = std::filesystem::read_symlink(entry, gone);
    count += target.starts_with("/memfd:" + pool.name() + ".");
  }
  return count;
}

/// The entry is reused before the handle refreshes: it keeps no former mapping.
void a_dead_segment_is_dropped_though_its_entry_is_reused() {
  const auto pool = Pool::create({unique_name("again"), "main", {"default"}, 1, 8});
  const os::Fd folder = os::open_pool_folder(pool->name());
  const os::Fd control = os::open_file(os::path_in(folder, "control"));
  Lanes lanes(pool->control(), control);  // As another process sees them.
  Segments peer(pool->control(), lanes, pool->name(), folder);
  const auto add = [&] {
    pool->add_segment(one_page(), false);
    map(peer, 1);
  };
  add();
  std::optional<SlabView> view = peer.resolve(memory::make_address(1, 1, 0), 4096);
  pool->drop_segment(1);
  pool->add_segment(one_page(), false);
  pool->drop_segment(1);
  CHECK(peer.refresh() && !peer.memory_of(1));
  CHECK(view->data[0] == std::byte{0});  // A view keeps its memory.
  view.reset();

  add();
  CHECK(!peer.has_unmapped());
  pool->drop_segment(1);
  pool->add_segment(one_page(), false);
  CHECK(peer.memory_of(1) && peer.has_unmapped());
  pool->drop_segment(1);

  add();
  CHECK(open_memory_of(*pool) == 2);  // Of both: it also hands it out if the owner is gone.
  // The next owner of the entry died before it handed out memory.
  std::atomic<SegmentWord>& word = pool->control().segment(0).word;
  word = segment_word(SegmentState::kDraining, 6, 7);
  CHECK(peer.refresh() && !peer.memory_of(1));
  CHECK(pool->segments().refresh() && open_memory_of(*pool) == 0);
  pool->close();
}

/// A reader without the segment's memory would wait for the new holder of the owner's lane.
void a_lane_is_not_reused_while_a_segment_of_its_owner_is_read() {
  const auto pool = Pool::create({unique_name("lane"), "main", {"default"}, 4, 3});
  const auto open = [&] { return Pool::open(pool->name(), "other", Deadline::in(5)); };
  auto owner = open();
  owner->add_segment(one_page(), false);
  const auto producer =
      std::make_shared<Producer>(pool, "default", std::nullopt, Producer::Credits{});
  auto lease = producer->lease({8, 1, {16, 0, 0, 0}, 16}, Deadline::in(5));
  owner->close();
  CHECK_THROWS(open(), PoolSpace);
  lease->abort();
  pool->segments().sweep();
  CHECK(open()->lane() == owner->lane());
  pool->close();
}

/// Its sockets are gone, so a segment that is not mapped by then never can be.
void a_removed_pool_neither_adds_nor_awaits_segments() {
  const auto maker = Pool::create({unique_name("removed"), "main", {"default"}, 4, 8});
  const auto pool = Pool::open(maker->name(), "other", Deadline::in(5));
  const os::Fd folder = os::open_pool_folder(pool->name());
  const os::Fd control = os::open_file(os::path_in(folder, "control"));
  Lanes lanes(pool->control(), control);  // As another process sees them.
  Segments peer(pool->control(), lanes, pool->name(), folder);
  pool->add_segment(one_page(), false);
  maker->close();
  const SlabView view = peer.resolve(memory::make_address(1, 1, 0), 4096);
  CHECK(!view && !view.awaited);
  CHECK_THROWS(pool->add_segment(one_page(), false), PoolNotFound);
  pool->close();
}

/// A call in another thread, begun before the close, adds and maps nothing after it.
void a_closed_handle_adds_and_maps_no_segment() {
  const auto pool = Pool::create({unique_name("closed"), "main", {"default"}, 4, 8});
  pool->add_segment(one_page(), false);
  const auto other = Pool::open(pool->name(), "other", Deadline::in(5));
  const auto producer = std::make_shared<Producer>(pool, "default", 1, Producer::Credits{});
  producer->lease({8, 1, {16, 0, 0, 0}, 16}, Deadline::in(5))->publish({7, 0});
  other->segments().close();
  const auto consumer = std::make_shared<Consumer>(other, "default");
  CHECK_THROWS(consumer->get(Deadline::in(30)), PoolClosed);
  CHECK_THROWS(other->add_segment(one_page(), false), PoolClosed);
  CHECK(segment_infos(pool->control()).size() == 1);
  // Other consumers still get the item.
  CHECK(std::make_shared<Consumer>(pool, "default")->try_get()->descriptor().key_low == 7);
  other->close();
  pool->close();
}

/// Number of mappings of a pool in this process.
int mappings_of(const Pool& pool) {
  int count = 0;
  std::ifstream maps("/proc/self/maps");
  for (std::string line; std::getline(maps, line);) {
    count += line.find("/memfd:" + pool.name() + ".") != std::string::npos;
  }
  return count;
}

/// Closing a handle frees its memory, also while the handle object lives.
void a_closed_handle_keeps_only_memory_with_views() {
  const auto pool = Pool::create({unique_name("keeps"), "main", {"default"}, 4, 8});
  pool->add_segment(one_page(), false);
  pool->add_segment(one_page(), false);
  const auto producer = std::make_shared<Producer>(pool, "default", 2, Producer::Credits{});
  auto lease = producer->lease({8, 1, {16, 0, 0, 0}, 16}, Deadline::in(5));
  CHECK(open_memory_of(*pool) == 2 && mappings_of(*pool) == 2);
  pool->close();
  CHECK(open_memory_of(*pool) == 1 && mappings_of(*pool) == 1);
  lease->data()[0] = std::byte{1};
  lease.reset();
  CHECK(open_memory_of(*pool) == 0 && mappings_of(*pool) == 0);
}

/// Otherwise the second wait would last until its deadline.
void calls_wait_only_once_for_an_owner_that_does_not_answer() {
  const auto pool = Pool::create({unique_name("once"), "main", {"default"}, 4, 8});
  const auto owner = Pool::open(pool->name(), "other", Deadline::in(5));
  const os::Fd folder = os::open_pool_folder(pool->name());
  const os::Fd control = os::open_file(os::path_in(folder, "control"));
  Lanes lanes(pool->control(), control);  // As another process sees them.
  Segments peer(pool->control(), lanes, pool->name(), folder);
  pool->add_segment(one_page(), false);
  pool->control().segment(0).word = segment_word(SegmentState::kLive, 1, owner->lane());
  CHECK(peer.map_all(Deadline::in(30), {}));
  CHECK(peer.map_all(Deadline::in(30),
                     [] { return true; }));  // Does not wait, so it is not interrupted.
  CHECK(!peer.refresh() && peer.resolve(memory::make_address(1, 1, 0), 4096).awaited);
  owner->close();
  pool->close();
}

}  // namespace

int main() {
  calls_wait_only_once_for_an_owner_that_does_not_answer();
  a_closed_handle_adds_and_maps_no_segment();
  a_closed_handle_keeps_only_memory_with_views();
  a_removed_pool_neither_adds_nor_awaits_segments();
  a_lane_is_not_reused_while_a_segment_of_its_owner_is_read();
  a_dead_segment_is_dropped_though_its_entry_is_reused();
  memory_is_handed_out_by_nonce_and_generation();
  a_hook_that_fails_for_a_present_segment_is_forgotten();
  a_hook_that_fails_for_a_new_segment_fails_add_segment();
  add_segment_fails_if_its_entry_changes();
  a_lease_waits_for_a_segment_that_is_being_made();
  a_lease_that_times_out_names_the_segment_that_cannot_be_mapped();
  a_failed_mapping_is_retried_in_the_background();
  a_lease_sleeps_while_another_thread_is_in_the_hook();
}
