// The segments of a handle: which addresses resolve, and what is attached to its mappings, made
// once for each and ended before its memory is.

#include <sys/resource.h>
#include <unistd.h>

#include <atomic>
#include <filesystem>
#include <fstream>
#include <map>
#include <memory>
#include <string>
#include <thread>

#include "base/error.hpp"
#include "channel/consumer.hpp"
#include "channel/inspect.hpp"
#include "channel/pool.hpp"
#include "channel/producer.hpp"
#include "check.hpp"
#include "memory/carve.hpp"
#include "os/folder.hpp"

using namespace flowtrain;
using namespace flowtrain::channel;

namespace {

/// Counts what lives by mapping, and reads the memory at the end of each.
struct Book {
  std::map<const std::byte*, int> made;
  std::atomic<int> alive = 0;

  MappingHook hook() {
    return [this](const os::Mapping& mapping, const std::string&) {
      ++made[mapping.data()];
      ++alive;
      return std::shared_ptr<void>(mapping.data(), [this](void* memory) {
        // A fault where the mapping is gone already.
        static_cast<void>(*static_cast<volatile char*>(memory));
        --alive;
      });
    };
  }
};

memory::Carving one_page() { return memory::carve({{4096, 1}}); }

std::string unique_name(const char* what) {
  return std::string("cpp-") + what + "-" + std::to_string(::getpid());
}

void every_mapping_gets_its_own_once() {
  Book book;
  const auto pool = Pool::create({unique_name("attach"), "main", {"default"}, 16, 8});
  const auto other = Pool::open(pool->name(), "other", Deadline::in(5));
  pool->add_segment(one_page(), false);
  CHECK(pool->segments().attach(book.hook()) == 4096);
  CHECK(book.alive == 1);
  pool->add_segment(one_page(), false);
  // Of another handle: mapped here when it is noticed, at the latest when it is used.
  const auto theirs = other->add_segment(one_page(), false);
  const auto producer = std::make_shared<Producer>(pool, "default", theirs, Producer::Credits{});
  auto lease = producer->lease({8, 1, {16, 0, 0, 0}, 16}, Deadline::in(5));
  CHECK(pool->segments().attach(book.hook()) == 3 * 4096);
  CHECK(book.alive == 3 && book.made.size() == 3);
  for (const auto& [data, times] : book.made) CHECK(times == 1);
  pool->close();
  // The lease's memory may still be written, so its registration lives on with it.
  CHECK(book.alive == 1);
  lease.reset();
  const Deadline deadline = Deadline::in(10);
  while (book.alive != 0 && !deadline.passed()) ::usleep(1000);
  CHECK(book.alive == 0);
  other->close();
}

/// To end a device's registration takes seconds, and the caller may hold the GIL.
void what_is_attached_ends_on_a_thread_of_its_own() {
  const auto pool = Pool::create({unique_name("ends"), "main", {"default"}, 16, 8});
  const auto owner = Pool::open(pool->name(), "other", Deadline::in(5));
  const auto caller = std::this_thread::get_id();
  std::atomic<int> ended = 0, by_caller = 0;
  const auto wait_for = [&](int number) {
    const Deadline deadline = Deadline::in(10);
    while (ended != number && !deadline.passed()) ::usleep(1000);
    CHECK(ended == number && by_caller == 0);
  };
  pool->segments().attach([&](const os::Mapping& mapping, const std::string&) {
    return std::shared_ptr<void>(mapping.data(), [&](void*) {
      by_caller += std::this_thread::get_id() == caller;
      ++ended;
    });
  });
  const auto producer =
      std::make_shared<Producer>(pool, "default", std::nullopt, Producer::Credits{});
  const auto lease = [&] { return producer->lease({8, 1, {16, 0, 0, 0}, 16}, Deadline::in(5)); };
  owner->add_segment(one_page(), false);
  auto last_view = lease();
  owner->drop_segment(1);
  last_view->abort();
  pool->segments().sweep();
  pool->segments().refresh();
  CHECK(ended == 0);
  last_view.reset();
  wait_for(1);

  owner->add_segment(one_page(), false);
  lease()->abort();
  owner->drop_segment(1);
  pool->segments().refresh();  // Forgets it, unless another thread was faster.
  wait_for(2);

  owner->add_segment(one_page(), false);
  auto of_closed = lease();
  pool->close();
  CHECK(ended == 2);
  of_closed.reset();
  wait_for(3);
  owner->close();
}

void a_hook_that_fails_at_once_is_forgotten() {
  const auto pool = Pool::create({unique_name("forgets"), "main", {"default"}, 16, 8});
  pool->add_segment(one_page(), false);
  const auto refuse = [](const os::Mapping&, const std::string& what) -> std::shared_ptr<void> {
    throw SystemCallError(what + ": refused");
  };
  CHECK_THROWS(pool->segments().attach(refuse), SystemCallError);
  pool->add_segment(one_page(), false);
  CHECK(segment_infos(pool->control()).size() == 2);
  pool->close();
}

void a_hook_that_fails_is_heard_by_whoever_adds() {
  const auto pool = Pool::create({unique_name("fails"), "main", {"default"}, 16, 8});
  pool->segments().attach([](const os::Mapping&, const std::string& what) -> std::shared_ptr<void> {
    throw SystemCallError(what + ": refused");
  });
  CHECK_THROWS(pool->add_segment(one_page(), false), SystemCallError);
  CHECK(segment_infos(pool->control()).empty());
  pool->close();
}

/// A lease that waited for its memory in vain is told why there is none.
void a_segment_that_cannot_be_mapped_is_said_to_whoever_waits_for_it() {
  const auto pool = Pool::create({unique_name("why"), "main", {"default"}, 16, 8});
  const auto owner = Pool::open(pool->name(), "other", Deadline::in(5));
  pool->segments().attach([](const os::Mapping&, const std::string& what) -> std::shared_ptr<void> {
    throw SystemCallError(what + ": refused");
  });
  const std::uint32_t number = owner->add_segment(one_page(), false);
  while (!pool->segments().refresh()) ::usleep(1000);
  const auto producer = std::make_shared<Producer>(pool, "default", number, Producer::Credits{});
  std::string said;
  try {
    producer->lease({8, 1, {16, 0, 0, 0}, 16}, Deadline::in(0));
  } catch (const PoolTimeout& error) {
    said = error.what();
  }
  const std::string segment = "segment '" + pool->name() + ".1'";
  CHECK(said.find(segment + " is not mapped here, since that failed: " + segment + ": refused") !=
        std::string::npos);
  owner->close();
  pool->close();
}

/// At the next use of the segment its owner may be dead, and its items lost.
void a_mapping_that_failed_is_tried_again_without_being_asked_for() {
  const auto pool = Pool::create({unique_name("retry"), "main", {"default"}, 16, 8});
  const auto owner = Pool::open(pool->name(), "other", Deadline::in(5));
  rlimit limit{};
  CHECK(::getrlimit(RLIMIT_NOFILE, &limit) == 0);
  std::atomic<bool> refused = false;
  pool->segments().attach([&](const os::Mapping&, const std::string& what) {
    if (!refused) {
      // Nor can the owner be asked again.
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
  while (!pool->segments().held(number).mapped && !deadline.passed()) ::usleep(1000);
  CHECK(pool->segments().held(number).mapped);
  owner->close();
  pool->close();
}

/// Each attempt takes the free slab and gives it back, so the slab's generation counts them.
void a_lease_sleeps_while_another_thread_is_in_the_hook() {
  const auto pool = Pool::create({unique_name("sleeps"), "main", {"default"}, 2, 8});
  const auto owner = Pool::open(pool->name(), "other", Deadline::in(5));
  std::atomic<bool> slow = false, entered = false, leave = false;
  owner->add_segment(one_page(), false);
  CHECK(pool->segments().map_all(Deadline::in(30), {}) && pool->segments().held(1).mapped);
  pool->segments().attach([&](const os::Mapping&, const std::string&) {
    entered = slow.load();
    while (slow && !leave) ::usleep(1000);
    return std::shared_ptr<void>();
  });
  slow = true;
  owner->add_segment(one_page(), false);
  while (!entered) ::usleep(1000);
  // The entry of the first segment is used again, and this handle cannot map the new one yet.
  owner->drop_segment(1);
  CHECK(owner->add_segment(one_page(), false) == 1);
  const std::uint32_t cell = pool->control().cells_of(pool->control().segment(0)).first;
  const auto lives = [&] { return lockfree::generation_of(pool->control().word(cell)); };
  const std::uint64_t before = lives();
  const auto producer = std::make_shared<Producer>(pool, "default", 1, Producer::Credits{});
  const Deadline deadline = Deadline::in(kOwnersAnswerS + 0.05);
  CHECK_THROWS(producer->lease({8, 1, {16, 0, 0, 0}, 16}, deadline), PoolTimeout);
  const std::uint64_t attempts = lives() - before;
  leave = true;
  CHECK(attempts > 0 && attempts < 1000 * (kOwnersAnswerS + 0.05) + 2);
  owner->close();
  pool->close();
}

/// add_segment returns a number only if the segment is there.
void an_entry_that_changes_while_it_is_made_is_heard_of() {
  const auto pool = Pool::create({unique_name("damaged"), "main", {"default"}, 16, 8});
  pool->segments().attach([&](const os::Mapping&, const std::string&) -> std::shared_ptr<void> {
    pool->control().segment(0).word = segment_word(SegmentState::kDead, 1, pool->lane());
    return nullptr;
  });
  CHECK_THROWS(pool->add_segment(one_page(), false), PoolCorrupt);
  CHECK(segment_infos(pool->control()).empty());
  pool->close();
}

/// The socket of a handle gives the memory of the segment that was asked for, and of no other.
void a_segment_is_served_by_its_pool_and_generation() {
  const auto pool = Pool::create({unique_name("serve"), "main", {"default"}, 1, 8});
  const std::string path = os::runtime_folder() + "/" + pool->name() + "/0.sock";
  const std::uint64_t nonce = pool->control().header().nonce;
  const auto has = [&](std::uint64_t of_pool, std::uint16_t generation, std::uint8_t segment) {
    const memory::Address address = memory::make_address(generation, segment, 0);
    const std::optional<os::Fd> fd = os::receive_fd(path, {of_pool, address});
    CHECK(fd);
    return static_cast<bool>(*fd);
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

/// The uses of an entry follow one another before a handle looks: it keeps none that is over.
void a_dead_segment_is_let_go_though_its_entry_is_used_again() {
  const auto pool = Pool::create({unique_name("again"), "main", {"default"}, 1, 8});
  const os::Fd folder = os::open_pool_folder(pool->name());
  const os::Fd control = os::open_file(os::path_in(folder, "control"));
  Lanes lanes(pool->control(), control);  // As another process sees them.
  Segments peer(pool->control(), lanes, pool->name(), folder);
  const auto add = [&] {
    pool->add_segment(one_page(), false);
    CHECK(peer.map_all(Deadline::in(30), {}) && peer.held(1).mapped);
  };
  add();
  const SlabView view = peer.resolve(memory::make_address(1, 1, 0), 4096);
  pool->drop_segment(1);
  pool->add_segment(one_page(), false);
  pool->drop_segment(1);
  CHECK(peer.refresh() && !peer.held(1).mapped);
  CHECK(view.data[0] == std::byte{0});  // A view keeps its memory.

  add();
  CHECK(!peer.has_unmapped());
  pool->drop_segment(1);
  pool->add_segment(one_page(), false);
  CHECK(peer.held(1).mapped && peer.has_unmapped());
  pool->drop_segment(1);

  add();
  CHECK(open_memory_of(*pool) == 1);
  // The next use is of an owner that died before it served anybody.
  std::atomic<SegmentWord>& word = pool->control().segment(0).word;
  word = segment_word(SegmentState::kDraining, 6, 7);
  CHECK(peer.refresh() && !peer.held(1).mapped);
  CHECK(pool->segments().refresh() && open_memory_of(*pool) == 0);
  pool->close();
}

/// Who lacks the memory of a segment would wait for whoever has its owner's lane.
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

/// Its sockets are gone: who has not mapped a segment by then never can.
void a_removed_pool_takes_no_segment_and_awaits_none() {
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

/// A call that began before the close, in another thread, makes and maps nothing after it.
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
  // The item is still there for others.
  CHECK(std::make_shared<Consumer>(pool, "default")->try_get()->descriptor().key_low == 7);
  other->close();
  pool->close();
}

/// How often this process has the memory of a pool mapped.
int mappings_of(const Pool& pool) {
  int count = 0;
  std::ifstream maps("/proc/self/maps");
  for (std::string line; std::getline(maps, line);) {
    count += line.find("/memfd:" + pool.name() + ".") != std::string::npos;
  }
  return count;
}

/// Closing a handle frees the memory, also while the handle object lives.
void a_closed_handle_keeps_only_the_memory_that_is_viewed() {
  const auto pool = Pool::create({unique_name("keeps"), "main", {"default"}, 4, 8});
  pool->add_segment(one_page(), false);
  pool->add_segment(one_page(), false);
  const auto producer = std::make_shared<Producer>(pool, "default", 2, Producer::Credits{});
  auto lease = producer->lease({8, 1, {16, 0, 0, 0}, 16}, Deadline::in(5));
  CHECK(open_memory_of(*pool) == 2 && mappings_of(*pool) == 2);
  pool->close();
  CHECK(open_memory_of(*pool) == 0 && mappings_of(*pool) == 1);
  lease->data()[0] = std::byte{1};
  lease.reset();
  CHECK(mappings_of(*pool) == 0);
}

/// The second wait would end only with its deadline, were the first forgotten.
void an_owner_who_does_not_answer_is_waited_for_once() {
  const auto pool = Pool::create({unique_name("once"), "main", {"default"}, 4, 8});
  const auto owner = Pool::open(pool->name(), "other", Deadline::in(5));
  const os::Fd folder = os::open_pool_folder(pool->name());
  const os::Fd control = os::open_file(os::path_in(folder, "control"));
  Lanes lanes(pool->control(), control);  // As another process sees them.
  Segments peer(pool->control(), lanes, pool->name(), folder);
  pool->add_segment(one_page(), false);
  pool->control().segment(0).word = segment_word(SegmentState::kLive, 1, owner->lane());
  CHECK(peer.map_all(Deadline::in(0.5), {}));
  CHECK(peer.map_all(Deadline::in(0.5), [] { return true; }));  // Asks nobody: it does not wait.
  CHECK(!peer.refresh() && peer.resolve(memory::make_address(1, 1, 0), 4096).awaited);
  owner->close();
  pool->close();
}

}  // namespace

int main() {
  an_owner_who_does_not_answer_is_waited_for_once();
  a_closed_handle_adds_and_maps_no_segment();
  a_closed_handle_keeps_only_the_memory_that_is_viewed();
  a_removed_pool_takes_no_segment_and_awaits_none();
  a_lane_is_not_reused_while_a_segment_of_its_owner_is_read();
  a_dead_segment_is_let_go_though_its_entry_is_used_again();
  a_segment_is_served_by_its_pool_and_generation();
  every_mapping_gets_its_own_once();
  what_is_attached_ends_on_a_thread_of_its_own();
  a_hook_that_fails_at_once_is_forgotten();
  a_hook_that_fails_is_heard_by_whoever_adds();
  an_entry_that_changes_while_it_is_made_is_heard_of();
  a_segment_that_cannot_be_mapped_is_said_to_whoever_waits_for_it();
  a_mapping_that_failed_is_tried_again_without_being_asked_for();
  a_lease_sleeps_while_another_thread_is_in_the_hook();
}
