// One item whose cell (descriptor and slab header) is changed after it was published. The consumer
// gets a valid item or an error; the next item is intact.
//
// Input: pairs of place and value, one per changed byte of the cell.

#include <unistd.h>

#include "channel/producer.hpp"
#include "fuzz/input.hpp"
#include "memory/carve.hpp"

using namespace flowtrain;
using namespace flowtrain::channel;

namespace {

/// A pool of one slab, with a producer and a consumer.
struct Subject {
  Subject() : pool(Pool::create({"fuzz-item-" + std::to_string(::getpid()), "", {"a"}, 2, 4})) {
    pool->add_segment(memory::carve({{4096, 1}}), false);
    producer = std::make_shared<Producer>(pool, "a", std::nullopt, Producer::Credits{});
    consumer = std::make_shared<Consumer>(pool, "a");
  }
  ~Subject() { pool->close(); }

  std::shared_ptr<Pool> pool;
  std::shared_ptr<Producer> producer;
  std::shared_ptr<Consumer> consumer;
};

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  static Subject subject;
  fuzz::Input input(data, size);
  const auto publish = [] {
    subject.producer->lease({0, 2, {3, 5, 0, 0}, 60}, Deadline::in(5))->publish({7, 0});
  };
  Cell& cell = subject.pool->control().cell(0);
  publish();
  std::uint8_t before[sizeof(Cell)];
  std::memcpy(before, static_cast<void*>(&cell), sizeof(Cell));
  while (!input.empty()) {
    const std::uint64_t place = input.number(1) % sizeof(Cell);
    reinterpret_cast<std::uint8_t*>(&cell)[place] = static_cast<std::uint8_t>(input.number(1));
  }
  fuzz::attempt([] {
    if (const auto item = subject.consumer->try_get()) {
      fuzz::check_valid(*item);
      CHECK(item->descriptor().bytes <= 4096);
      item->release();
    }
  });
  std::memcpy(static_cast<void*>(&cell), before, sizeof(Cell));
  publish();
  const auto next = subject.consumer->get(Deadline::in(5));
  CHECK(next->descriptor().key_low == 7 && next->descriptor().bytes == 60);
  next->release();
  return 0;
}
