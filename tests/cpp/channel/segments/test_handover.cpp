// A handle that closes: for whom it waits, and what nobody can do meanwhile.

#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include <atomic>
#include <functional>
#include <optional>
#include <string>
#include <thread>
#include <utility>

#include "base/error.hpp"
#include "channel/consumer.hpp"
#include "channel/liveness/registry.hpp"
#include "channel/pool.hpp"
#include "channel/pool_names.hpp"
#include "channel/producer.hpp"
#include "check.hpp"
#include "memory/carve.hpp"
#include "os/folder.hpp"

using namespace flowtrain;
using namespace flowtrain::channel;

namespace {

thread_local const std::function<void()>* at_clock = nullptr;

}  // namespace

/// Replaces the C library's, which a publication calls: lets a test act in the middle of it.
extern "C" __attribute__((visibility("default"))) int clock_gettime(clockid_t clock,
                                                                    timespec* time) noexcept {
  if (const auto* const act = std::exchange(at_clock, nullptr)) (*act)();
  return static_cast<int>(::syscall(SYS_clock_gettime, clock, time));
}

namespace {

const memory::Carving kPage = memory::carve({{4096, 1}});

/// A pool handle as of another process, which maps segments only when told to.
struct Peer {
  explicit Peer(const Pool& pool)
      : folder(os::open_pool_folder(pool.name())),
        control(os::open_file(os::path_in(folder, "control"))),
        lanes(pool.control(), control),
        segments(pool.control(), lanes, pool.name(), folder) {
    lane = lanes.join(LaneRole::kPool, 0, "peer", pool.name());
    segments.announce_in(lane);
  }
  void map() {
    const Deadline deadline = Deadline::in(30);
    while (!segments.memory_of(1) && !deadline.passed()) {
      segments.refresh();
      ::usleep(1000);
    }
    CHECK(segments.memory_of(1));
  }

  os::Fd folder;
  os::Fd control;
  Lanes lanes;
  Segments segments;
  std::uint16_t lane;
};

PoolOptions options_of(const std::string& name) { return {name, "main", {"default"}, 16, 8}; }

std::shared_ptr<Pool> make(const char* what) {
  return Pool::create(options_of(std::string("cpp-") + what + "-" + std::to_string(::getpid())));
}

std::shared_ptr<Pool> open(const Pool& pool) {
  return Pool::open(pool.name(), "other", Deadline::in(5));
}

void publish_in_new_segment(const std::shared_ptr<Pool>& pool) {
  const std::uint32_t segment = pool->add_segment(kPage, false);
  const auto producer = std::make_shared<Producer>(pool, "default", segment, Producer::Credits{});
  producer->lease({8, 1, {16, 0, 0, 0}, 16}, Deadline::in(5))->publish({7, 0});
}

std::string error_of_close(Pool& pool) {
  try {
    pool.close([] { return true; });
  } catch (const PoolTimeout& error) {
    return error.what();
  }
  return "";
}

/// The peer maps nothing before the owner is gone. Then the creator's handle serves it.
void an_owner_waits_for_one_handle_and_the_creator_for_all() {
  const auto pool = make("waits");
  const auto owner = open(*pool);
  Peer peer(*pool);
  publish_in_new_segment(owner);
  owner->close();
  CHECK(!peer.segments.memory_of(1));
  int calls = 0;
  pool->close([&] {
    if (++calls == 1) {
      CHECK_THROWS(Pool::open(pool->name(), "late", Deadline::in(0)), PoolNotFound);
      CHECK_THROWS(Pool::create({pool->name(), "", {"default"}, 1, 2}), PoolExists);
      CHECK(!pool_exists(pool->name()));
    }
    peer.segments.refresh();
    return false;
  });
  CHECK(calls > 0 && peer.segments.memory_of(1));
  CHECK(peer.segments.resolve(memory::make_address(1, 1, 0), 4096));
}

/// Its successor waits for the end of the closing, instead of failing because the name is in use.
void a_pool_is_created_while_another_of_its_name_is_being_closed() {
  const auto pool = make("again");
  Peer peer(*pool);
  pool->add_segment(kPage, false);
  std::atomic<bool> waits = false;
  std::shared_ptr<Pool> next;
  std::string error;
  std::optional<std::jthread> creator;
  pool->close([&] {
    if (!creator) {
      creator.emplace([&] {
        try {
          next = Pool::create(options_of(pool->name()), {}, [&] {
            waits = true;
            return false;
          });
        } catch (const PoolExists& exists) {
          error = exists.what();
        }
        waits = true;
      });
    }
    if (waits) peer.segments.refresh();
    return false;
  });
  creator->join();
  CHECK(error.empty() && pool_exists(pool->name()));
  next->close();
}

/// A close that does not wait for the publication finds no item in the segment, and takes the
/// memory along before anybody has mapped it.
void an_item_whose_handle_closes_during_its_publication_is_not_lost() {
  const auto pool = make("during");
  std::atomic<bool> done = false;
  pool->segments().attach("test", [&](const memory::Memory&, const std::string&) {
    while (!done) ::usleep(1000);  // The creator's handle maps nothing before the end.
    return std::shared_ptr<void>();
  });
  const auto owner = open(*pool);
  Peer peer(*pool);
  const std::uint32_t segment = owner->add_segment(kPage, false);
  const auto producer = std::make_shared<Producer>(owner, "default", segment, Producer::Credits{});
  const auto lease = producer->lease({8, 1, {16, 0, 0, 0}, 16}, Deadline::in(5));
  std::atomic<bool> closed = false;
  std::jthread closer;
  const std::function<void()> close = [&] {
    closer = std::jthread([&] {
      owner->close([&] {
        peer.segments.refresh();
        return false;
      });
      closed = true;
    });
    for (int i = 0; i < 200 && !closed; ++i) ::usleep(1000);
  };
  at_clock = &close;
  lease->publish({7, 0});
  CHECK(closer.joinable());
  closer.join();
  CHECK(peer.segments.resolve(memory::make_address(1, 1, 0), 4096));
  done = true;
  pool->close();
}

void a_close_that_may_lose_items_says_so() {
  const auto pool = make("says");
  Peer peer(*pool);
  publish_in_new_segment(pool);
  CHECK(error_of_close(*pool).find("'peer' (pid " + std::to_string(::getpid()) +
                                   ") did not map segment 1, which has 1 items") !=
        std::string::npos);
  CHECK(pool->closed());
}

void one_interrupt_ends_the_closes_of_all_pools() {
  const auto one = make("one"), two = make("two");
  Peer peer_of_one(*one), peer_of_two(*two);
  one->add_segment(kPage, false);
  two->add_segment(kPage, false);
  int calls = 0;
  std::string said;
  try {
    close_all_pools([&] { return ++calls > 0; });
  } catch (const PoolTimeout& error) {
    said = error.what();
  }
  CHECK(calls == 2 && one->closed() && two->closed());
  for (const auto& pool : {one, two}) CHECK(said.find(pool->name()) != std::string::npos);
}

/// Nothing waits for memory that is gone, or that holds no items.
void a_close_waits_only_for_what_can_be_mapped() {
  const auto pool = make("only");
  const auto owner = open(*pool);
  Peer peer(*pool);
  owner->add_segment(kPage, false);
  CHECK(error_of_close(*owner).empty());
  publish_in_new_segment(pool);
  // No handle has this generation.
  pool->control().segment(0).word = segment_word(SegmentState::kDraining, 9, owner->lane());
  CHECK(error_of_close(*pool).empty());
}

void a_closing_pool_takes_no_new_segment() {
  const auto pool = make("takes");
  const auto other = open(*pool);
  Peer peer(*pool);
  pool->add_segment(kPage, false);
  bool refused = false;
  pool->close([&] {
    CHECK_THROWS(other->add_segment(kPage, false), PoolNotFound);
    refused = true;
    peer.segments.refresh();
    return false;
  });
  CHECK(refused);
  other->close();
}

/// Two handles have mapped the memory of an owner that is gone; the first one asked has no server
/// yet, or one that is stuck.
void a_handle_that_does_not_hand_out_memory_is_passed_over(bool stuck) {
  const auto pool = make("passes");
  const auto owner = open(*pool);
  Peer mute(*pool), late(*pool);
  publish_in_new_segment(owner);
  mute.map();
  while (!pool->segments().memory_of(1)) ::usleep(1000);
  owner->close();
  std::atomic<bool> leave = false;
  std::optional<os::FdServer> server;
  if (stuck) {
    server.emplace("test", os::path_in(mute.folder, std::to_string(mute.lane) + ".sock"),
                   pool->control().header().nonce, [&](std::uint64_t) {
                     while (!leave) ::usleep(1000);
                     return os::Exported();
                   });
  }
  late.map();
  leave = true;
}

}  // namespace

int main() {
  for (const bool stuck : {false, true}) {
    a_handle_that_does_not_hand_out_memory_is_passed_over(stuck);
  }
  an_owner_waits_for_one_handle_and_the_creator_for_all();
  a_pool_is_created_while_another_of_its_name_is_being_closed();
  an_item_whose_handle_closes_during_its_publication_is_not_lost();
  a_close_that_may_lose_items_says_so();
  a_close_waits_only_for_what_can_be_mapped();
  a_closing_pool_takes_no_new_segment();
  one_interrupt_ends_the_closes_of_all_pools();
}
