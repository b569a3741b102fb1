// What is attached to the mappings of a handle: made once for each, ended before its memory is.

#include <unistd.h>

#include <map>
#include <memory>
#include <string>

#include "base/error.hpp"
#include "channel/inspect.hpp"
#include "channel/pool.hpp"
#include "channel/producer.hpp"
#include "check.hpp"
#include "memory/carve.hpp"

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

}  // namespace

int main() {
  every_mapping_gets_its_own_once();
  a_hook_that_fails_at_once_is_forgotten();
  a_hook_that_fails_is_heard_by_whoever_adds();
}
