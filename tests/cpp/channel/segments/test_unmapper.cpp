// Objects attached to mappings: made once for each mapping, and ended before its memory is
// unmapped, on a thread of their own.

#include <unistd.h>

#include <atomic>
#include <map>
#include <memory>
#include <string>
#include <thread>

#include "base/error.hpp"
#include "channel/pool.hpp"
#include "channel/producer.hpp"
#include "check.hpp"
#include "memory/carve.hpp"

using namespace flowtrain;
using namespace flowtrain::channel;

namespace {

/// Hook whose objects count themselves, and read the mapped memory when they end.
struct Book {
  std::map<const std::byte*, int> made;
  std::atomic<int> alive = 0;

  MemoryHook hook() {
    return [this](const memory::Memory& memory, const std::string&) {
      ++made[memory.host()];
      ++alive;
      return std::shared_ptr<void>(memory.host(), [this](void* first) {
        // Faults if the memory is unmapped already.
        static_cast<void>(*static_cast<volatile char*>(first));
        --alive;
      });
    };
  }
};

memory::Carving one_page() { return memory::carve({{4096, 1}}); }

std::string unique_name(const char* what) {
  return std::string("cpp-") + what + "-" + std::to_string(::getpid());
}

void the_hook_runs_once_for_each_mapping() {
  Book book;
  const auto pool = Pool::create({unique_name("attach"), "main", {"default"}, 16, 8});
  const auto other = Pool::open(pool->name(), "other", Deadline::in(5));
  pool->add_segment(one_page(), false);
  CHECK(pool->segments().attach("test", book.hook()) == 4096);
  CHECK(book.alive == 1);
  pool->add_segment(one_page(), false);
  // Of another handle: mapped here in the background, at the latest by its first use.
  const auto theirs = other->add_segment(one_page(), false);
  const auto producer = std::make_shared<Producer>(pool, "default", theirs, Producer::Credits{});
  auto lease = producer->lease({8, 1, {16, 0, 0, 0}, 16}, Deadline::in(5));
  CHECK(pool->segments().attach("test", book.hook()) == 3 * 4096);
  CHECK(book.alive == 3 && book.made.size() == 3);
  for (const auto& [data, times] : book.made) CHECK(times == 1);
  pool->close();
  // The lease may still be written, so its registration stays.
  CHECK(book.alive == 1);
  lease.reset();
  const Deadline deadline = Deadline::in(10);
  while (book.alive != 0 && !deadline.passed()) ::usleep(1000);
  CHECK(book.alive == 0);
  other->close();
}

/// Ending a device's registration can take seconds, and the caller may hold the GIL.
void attached_objects_end_on_a_thread_of_their_own() {
  const auto pool = Pool::create({unique_name("ends"), "main", {"default"}, 16, 8});
  const auto owner = Pool::open(pool->name(), "other", Deadline::in(5));
  const auto caller = std::this_thread::get_id();
  std::atomic<int> ended = 0, by_caller = 0;
  const auto wait_for = [&](int number) {
    const Deadline deadline = Deadline::in(10);
    while (ended != number && !deadline.passed()) ::usleep(1000);
    CHECK(ended == number && by_caller == 0);
  };
  pool->segments().attach("test", [&](const memory::Memory& memory, const std::string&) {
    return std::shared_ptr<void>(memory.host(), [&](void*) {
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
  pool->segments().refresh();  // Drops it, unless the mapper thread was faster.
  wait_for(2);

  owner->add_segment(one_page(), false);
  auto of_closed = lease();
  pool->close();
  CHECK(ended == 2);
  of_closed.reset();
  wait_for(3);
  owner->close();
}

/// Of a device and of a network, say.
void memory_has_an_object_of_each_hook_and_the_last_one_ends_first() {
  const auto pool = Pool::create({unique_name("both"), "main", {"default"}, 16, 8});
  std::string made, ended;
  const auto attach = [&](const char* key) {
    pool->segments().attach(key, [&, key](const memory::Memory& memory, const std::string&) {
      made += key;
      return std::shared_ptr<void>(memory.host(), [&, key](void*) { ended += key; });
    });
  };
  attach("a");
  pool->add_segment(one_page(), false);
  attach("b");
  attach("a");
  pool->add_segment(one_page(), false);
  CHECK(made == "abab");
  const auto& first = *pool->segments().memory_of(1);
  CHECK(first.has_attached("a") && first.has_attached("b"));
  CHECK_THROWS(first.attach("a", nullptr), BadArgument);
  pool->close();
  CHECK(ended == "baba");
}

}  // namespace

int main() {
  memory_has_an_object_of_each_hook_and_the_last_one_ends_first();
  the_hook_runs_once_for_each_mapping();
  attached_objects_end_on_a_thread_of_their_own();
}
