// Memory that is not of the host: when a handle maps it, and what a handle does that cannot.

#include <unistd.h>

#include <memory>
#include <set>
#include <string>

#include "base/error.hpp"
#include "channel/consumer.hpp"
#include "channel/pool.hpp"
#include "channel/producer.hpp"
#include "channel/telemetry/inspect.hpp"
#include "check.hpp"
#include "memory/carve.hpp"
#include "memory/fake.hpp"
#include "memory/memfd.hpp"

using namespace flowtrain;
using namespace flowtrain::channel;

namespace {

const memory::Place kFake{memory::Kind::kFake, memory::fake_device(3)};
const memory::Carving kPage = memory::carve({{4096, 2}});

/// A pool with a segment of the host and one of a fake device, and another handle.
struct Fixture {
  explicit Fixture(const memory::Resources& theirs = memory::host_resources())
      : pool(Pool::create({"cpp-places-" + std::to_string(::getpid()), "main", {"a"}, 8, 8})),
        other(Pool::open(pool->name(), "other", Deadline::in(5), {}, &Pool::destroy, theirs)),
        host(pool->add_segment(kPage, true)),
        fake(pool->add_segment(kPage, true, {}, kFake)) {}
  ~Fixture() { pool->close(); }

  void publish(std::uint32_t segment, std::uint64_t key) const {
    const auto producer = std::make_shared<Producer>(pool, "a", segment, Producer::Credits{});
    const auto lease = producer->lease({8, 1, {16, 0, 0, 0}, 16}, Deadline::in(5));
    lease->data()[0] = static_cast<std::byte>(key);
    lease->publish({key, 0});
  }
  /// Word of the other handle's lane for the segment of the device.
  std::uint32_t said() const {
    return pool->control().lane(other->lane()).mapped[fake - 1].load(std::memory_order_acquire);
  }
  void wait_until_said(std::uint32_t word) const {
    const Deadline deadline = Deadline::in(30);
    while (said() != word && !deadline.passed()) ::usleep(1000);
    CHECK(said() == word);
  }

  std::shared_ptr<Pool> pool;
  std::shared_ptr<Pool> other;
  std::uint32_t host;
  std::uint32_t fake;
};

void a_segment_names_its_place_everywhere() {
  const Fixture f;
  const auto infos = segment_infos(f.pool->control());
  CHECK(infos[0].place == memory::Place{} && infos[1].place == kFake);
  f.publish(f.fake, 7);
  const auto item = std::make_shared<Consumer>(f.other, "a")->get(Deadline::in(5));
  CHECK(item->slab().memory->place() == kFake && item->slab().memory->ordinal() == 3);
  CHECK(item->data()[0] == std::byte{7});
  item->release();
}

/// A context on a device takes memory there, and a process that forks must not have one.
void only_a_handle_that_reads_maps_the_memory_of_a_device_early() {
  const Fixture f;
  f.wait_until_said(Lane::kNotMapped | 1);
  CHECK(!f.other->segments().memory_of(f.fake));
  const auto consumer = std::make_shared<Consumer>(f.other, "a");
  f.wait_until_said(1);
  CHECK(f.other->segments().memory_of(f.fake));
}

/// Otherwise the watcher would be woken by the answer again and again.
void an_answer_that_no_call_takes_is_taken_in_the_background() {
  const Fixture f;
  f.wait_until_said(Lane::kNotMapped | 1);
  Segments& segments = f.other->segments();
  const memory::Address slab = memory::make_address(1, static_cast<std::uint8_t>(f.fake), 0);
  const Deadline deadline = Deadline::in(30);
  while (!segments.memory_of(f.host) && !deadline.passed()) ::usleep(1000);
  // The call that asks does not come back. Again if another thread was mapping.
  while (segments.pending_sockets().empty() && !segments.memory_of(f.fake) && !deadline.passed()) {
    segments.resolve(slab, 16);
  }
  f.wait_until_said(1);
  CHECK(segments.memory_of(f.fake));
}

void a_handle_that_cannot_map_a_segment_puts_its_items_back() {
  memory::Resources none{};
  none[0] = &memory::memfd();
  const Fixture f(none);
  f.publish(f.host, 1);
  f.publish(f.fake, 2);
  f.publish(f.host, 3);
  const auto consumer = std::make_shared<Consumer>(f.other, "a", false);
  std::set<std::uint64_t> keys;
  for (const Deadline deadline = Deadline::in(30); keys.size() < 2 && !deadline.passed();) {
    try {
      for (const auto& item : consumer->get_many(4, Deadline::in(5))) {
        keys.insert(item->descriptor().key_low);
        item->release();
      }
    } catch (const MemoryUnreachable&) {
    }
  }
  CHECK(keys == std::set<std::uint64_t>({1, 3}));
  CHECK_THROWS(consumer->get(Deadline::in(5)), MemoryUnreachable);
  CHECK_THROWS(consumer->get_many(4, Deadline::in(5)), MemoryUnreachable);
  std::string text;
  try {
    consumer->get(
        Deadline::in(5));  // try_get finds none while the handle's own thread tries to map.
  } catch (const MemoryUnreachable& error) {
    text = error.what();
  }
  for (const char* part : {".2'", "'fake' on device 66616b65-0000-0000-0000-000000000003",
                           "no support for this kind", "memory of the host"}) {
    CHECK(text.find(part) != std::string::npos);
  }
  const auto item = std::make_shared<Consumer>(f.pool, "a")->try_get();
  CHECK(item->descriptor().key_low == 2 && item->attempt() == 0);
  item->release();
  const Lane& lane = f.pool->control().lane(consumer->lane());
  CHECK(lane.items_lost.load() == 0 && lane.items_taken.load() == 2);
  CHECK_THROWS(f.other->add_segment(kPage, true, {}, kFake), MemoryUnreachable);
  // A close that waited for that handle would time out.
  f.publish(f.fake, 4);
  f.pool->close();
}

void an_unknown_device_is_refused_before_anything_is_made() {
  const Fixture f;
  const memory::Place nowhere{memory::Kind::kFake, {1, 2}};
  CHECK_THROWS(f.pool->add_segment(kPage, true, {}, nowhere), MemoryUnreachable);
  CHECK(segment_infos(f.pool->control()).size() == 2);
}

}  // namespace

int main() {
  a_segment_names_its_place_everywhere();
  only_a_handle_that_reads_maps_the_memory_of_a_device_early();
  an_answer_that_no_call_takes_is_taken_in_the_background();
  a_handle_that_cannot_map_a_segment_puts_its_items_back();
  an_unknown_device_is_refused_before_anything_is_made();
}
