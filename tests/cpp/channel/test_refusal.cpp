// What another process may write into a pool, and what it is answered: each damage by its name.

#include <unistd.h>

#include <functional>
#include <string>

#include "base/error.hpp"
#include "channel/consumer.hpp"
#include "channel/inspect.hpp"
#include "channel/producer.hpp"
#include "check.hpp"
#include "memory/carve.hpp"
#include "os/folder.hpp"

using namespace flowtrain;
using namespace flowtrain::channel;

namespace {

/// A pool of four slabs of 4096 bytes, with a producer and a consumer.
struct Fixture {
  Fixture()
      : pool(Pool::create({"cpp-refusal-" + std::to_string(::getpid()), "main", {"a"}, 5, 8})) {
    pool->add_segment(memory::carve({{4096, 4}}), false);
    producer = std::make_shared<Producer>(pool, "a", std::nullopt, Producer::Credits{});
    consumer = std::make_shared<Consumer>(pool, "a");
  }
  ~Fixture() { pool->close(); }

  std::shared_ptr<Lease> lease() {
    return producer->lease({8, 1, {64, 0, 0, 0}, 64}, Deadline::in(5));
  }
  const Control& control() const { return pool->control(); }
  std::uint32_t in_use() const { return segment_infos(control()).front().slabs_in_use; }

  std::shared_ptr<Pool> pool;
  std::shared_ptr<Producer> producer;
  std::shared_ptr<Consumer> consumer;
};

std::string corrupt(const std::function<void()>& call) {
  try {
    call();
  } catch (const PoolCorrupt& error) {
    return error.what();
  }
  return "";
}

bool says(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

void an_item_is_refused_for_what_is_wrong_with_it() {
  using memory::make_address;
  const struct {
    std::function<void(Cell&)> damage;
    const char* said;
  } cases[] = {
      {[](Cell& c) { c.descriptor.dtype = 14; }, "there is no dtype 14"},
      {[](Cell& c) { c.descriptor.ndim = 5; }, "it has 5 dimensions"},
      {[](Cell& c) { c.descriptor.shape[0] = 65; }, "its shape is not one of 64 bytes"},
      {[](Cell& c) { c.descriptor.bytes = c.descriptor.shape[0] = 4097; }, "4097 bytes at address"},
      {[](Cell& c) { c.descriptor.address += 4096; }, "are not in its slab of 4096 bytes"},
      {[](Cell& c) { c.descriptor.producer = 0; }, "lane 0 did not lease its slab"},
      {[](Cell& c) { c.descriptor.producer = c.producer = 8; }, "lane 8 did not lease its slab"},
      {[](Cell& c) { c.descriptor.address = c.slab = make_address(1, 2, 0); }, "no segment 2"},
      {[](Cell& c) { c.descriptor.address = c.slab = make_address(2, 1, 0); },
       "segment 1 is in generation 1, its address in 2"},
  };
  for (const auto& [damage, said] : cases) {
    Fixture f;
    f.lease()->publish({1, 0});
    f.lease()->publish({2, 0});
    damage(f.control().cell(0));
    const std::string text = corrupt([&] { f.consumer->try_get(); });
    CHECK(says(text, said) && says(text, "ring 'a': an item in cell 0") && says(text, "make"));
    // Once: it is counted, its slab is free, and what comes behind it is delivered.
    CHECK(f.consumer->try_get()->descriptor().key_low == 2);
    CHECK(f.in_use() == 0);
  }
}

void what_comes_with_a_refused_item_is_delivered() {
  Fixture f;
  const std::array leases{f.lease(), f.lease(), f.lease()};
  f.producer->publish_many(leases, std::array<Key, 3>{{{1, 0}, {2, 0}, {3, 0}}});
  f.control().cell(1).descriptor.dtype = 99;
  CHECK(f.consumer->try_get_many(8).size() == 1);
  CHECK(says(corrupt([&] { f.consumer->try_get_many(8); }), "dtype 99"));
  CHECK(f.consumer->try_get_many(8).size() == 1);
  CHECK(f.in_use() == 0);
}

void memory_behind_a_slab_is_not_mapped() {
  Fixture f;
  f.lease()->publish({1, 0});
  Cell& cell = f.control().cell(0);
  // In its slab, by the cell's own word, and beyond the segment.
  cell.slab_bytes = cell.descriptor.bytes = cell.descriptor.shape[0] = 16385;
  CHECK(says(corrupt([&] { f.consumer->try_get(); }), "beyond segment 1 of 16384 bytes"));
  f.lease()->publish({2, 0});
  cell.descriptor.bytes = cell.descriptor.shape[0] = 16385;
  // By the segment's entry as well, which is not what was mapped.
  f.control().segment(0).bytes = 1 << 20;
  CHECK(f.consumer->try_get() == nullptr && f.in_use() == 0);
}

void a_slab_that_is_not_in_its_segment_is_not_leased() {
  for (const memory::Address address :
       {memory::make_address(1, 0, 0), memory::make_address(1, 1, 16384),
        memory::make_address(2, 1, 0), memory::make_address(1, 2, 0),
        memory::make_address(1, 200, 0)}) {
    Fixture f;
    f.control().cell(0).slab = address;
    CHECK(says(corrupt([&] { f.lease(); }), "the slab of cell 0 is not in its segment"));
    CHECK(f.in_use() == 0);
  }
}

void a_slot_that_names_no_cells_is_refused(const lockfree::Run& run) {
  Fixture f;
  const std::uint32_t capacity = f.control().geometry().ring_capacity;
  auto* slots = reinterpret_cast<lockfree::AtomicSlot*>(&f.control().ring_header(0) + 1);
  for (std::uint32_t i = 0; i < capacity; ++i) slots[i] = lockfree::full_slot(0, run);
  CHECK(says(corrupt([&] { f.consumer->try_get(); }), "what it says to hold is not there"));
}

void a_ring_out_of_order_ends_its_taker() {
  Fixture f;
  const std::uint32_t capacity = f.control().geometry().ring_capacity;
  auto* slots = reinterpret_cast<lockfree::AtomicSlot*>(&f.control().ring_header(0) + 1);
  for (std::uint32_t i = 0; i < capacity; ++i) slots[i] = lockfree::full_slot(1 << 20, {0, 1});
  CHECK(says(corrupt([&] { f.consumer->try_get(); }), "what it says to hold is not there"));
}

void what_was_taken_away_is_not_given_back() {
  Fixture f;
  const auto lease = f.lease();
  const auto theirs = lockfree::cell_word(lockfree::CellState::kTaken, 7, 0);
  f.control().word(0) = theirs;
  CHECK(says(corrupt([&] { lease->publish({1, 0}); }), "no longer this producer's"));
  lease->abort();
  CHECK(f.control().word(0) == theirs);
  f.lease()->publish({2, 0});
  const auto item = f.consumer->try_get();
  f.control().word(1) = theirs;
  CHECK(says(corrupt([&] { item->release(); }), "no longer this consumer's"));
  CHECK(f.control().word(1) == theirs);
}

void a_file_is_refused_for_its_sizes() {
  Fixture f;
  const std::string path = os::runtime_folder() + "/" + f.pool->name() + "/control";
  const auto open = [&] { Pool::open(f.pool->name(), "", Deadline::in(0)); };
  Header& header = f.control().header();
  const Geometry right = header.geometry;
  const auto wrong = [&](auto member, std::uint32_t value) {
    header.geometry.*member = value;
    CHECK(says(corrupt(open), "sizes that no pool has"));
    header.geometry = right;
  };
  wrong(&Geometry::max_lanes, 0);
  wrong(&Geometry::max_lanes, 1 << 16);
  wrong(&Geometry::max_cells, 9);  // More than the ring has slots.
  wrong(&Geometry::num_rings, 0);
  wrong(&Geometry::ring_capacity, 12);
  wrong(&Geometry::ring_capacity, 1U << 31);
  header.magic = 7;
  CHECK(says(corrupt(open), "not a pool's control file"));
  header.magic = kMagic;
  const auto copy = Control::file_bytes(right) - kPageBytes;
  CHECK(::truncate(path.c_str(), static_cast<off_t>(copy)) == 0);
  CHECK(says(corrupt(open), "its tables need " + std::to_string(Control::file_bytes(right))));
  CHECK(::truncate(path.c_str(), static_cast<off_t>(Control::file_bytes(right))) == 0);
}

}  // namespace

int main() {
  an_item_is_refused_for_what_is_wrong_with_it();
  what_comes_with_a_refused_item_is_delivered();
  memory_behind_a_slab_is_not_mapped();
  a_slab_that_is_not_in_its_segment_is_not_leased();
  a_slot_that_names_no_cells_is_refused({4, 2});
  a_slot_that_names_no_cells_is_refused({0, 0});
  a_ring_out_of_order_ends_its_taker();
  what_was_taken_away_is_not_given_back();
  a_file_is_refused_for_its_sizes();
}
