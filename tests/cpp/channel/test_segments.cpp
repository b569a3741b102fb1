// The segments of a handle: which addresses resolve, and what is attached to its mappings, made
// once for each and ended before its memory is.

#include <unistd.h>

#include <filesystem>
#include <map>
#include <memory>
#include <string>

#include "base/error.hpp"
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
  int alive = 0;

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
  other->close();
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

/// An entry that is used again, and again, never resolves an address of an earlier use.
void an_address_is_stale_for_ever() {
  const auto pool = Pool::create({unique_name("stale"), "main", {"default"}, 1, 8});
  const memory::Address first = memory::make_address(1, 1, 0);
  CHECK(pool->add_segment(one_page(), false) == 1 && pool->segments().resolve(first, 4096));
  for (int use = 0; use < 256; ++use) {
    pool->drop_segment(1);
    CHECK(pool->add_segment(one_page(), false) == 1 && !pool->segments().resolve(first, 4096));
  }
  pool->close();
}

void an_entry_without_a_new_generation_is_not_used_again() {
  const auto pool = Pool::create({unique_name("last"), "main", {"default"}, 2, 8});
  std::atomic<SegmentWord>& word = pool->control().segment(0).word;
  bool refuse = false;
  pool->segments().attach([&](const os::Mapping&, const std::string&) -> std::shared_ptr<void> {
    if (refuse) throw SystemCallError("refused");
    return nullptr;
  });
  CHECK(pool->add_segment(one_page(), false) == 1);
  pool->drop_segment(1);
  word = segment_word(SegmentState::kDead, kLastGeneration - 1, pool->lane());
  refuse = true;
  CHECK_THROWS(pool->add_segment(one_page(), false), SystemCallError);  // Uses up nothing.
  refuse = false;
  CHECK(pool->add_segment(one_page(), false) == 1 && generation_of(word) == kLastGeneration);
  pool->drop_segment(1);
  CHECK(pool->add_segment(one_page(), false) == 2);
  std::string said;
  try {
    pool->add_segment(one_page(), false);
  } catch (const PoolSpace& error) {
    said = error.what();
  }
  CHECK(said.find("1 of the segments for good, after 65535 uses") != std::string::npos);
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
  const Lanes lanes(pool->control(), control);  // As another process sees them.
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
  CHECK(open_memory_of(*pool) == 1);
  // The next use is of an owner that died before it served anybody.
  std::atomic<SegmentWord>& word = pool->control().segment(0).word;
  word = segment_word(SegmentState::kDraining, 4, 7);
  CHECK(peer.refresh() && !peer.held(1).mapped);
  CHECK(pool->segments().refresh() && open_memory_of(*pool) == 0);
  pool->close();
}

}  // namespace

int main() {
  a_dead_segment_is_let_go_though_its_entry_is_used_again();
  a_segment_is_served_by_its_pool_and_generation();
  an_address_is_stale_for_ever();
  an_entry_without_a_new_generation_is_not_used_again();
  every_mapping_gets_its_own_once();
  a_hook_that_fails_at_once_is_forgotten();
  a_hook_that_fails_is_heard_by_whoever_adds();
}
