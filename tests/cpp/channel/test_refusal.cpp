// Damage that another process can do to a pool, and the error for each.

#include <unistd.h>

#include <functional>
#include <string>

#include "base/error.hpp"
#include "channel/consumer.hpp"
#include "channel/producer.hpp"
#include "channel/telemetry/inspect.hpp"
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
  /// Key of the next item, which is released.
  std::uint64_t next_key() {
    const auto item = consumer->try_get();
    item->release();
    return item->descriptor().key_low;
  }
  /// Number of the next items, up to eight, which are released.
  std::size_t take_all() {
    const auto items = consumer->try_get_many(8);
    for (const auto& item : items) item->release();
    return items.size();
  }
  const Control& control() const { return pool->control(); }
  std::uint32_t in_use() const {
    std::uint32_t cells = 0;
    for (std::uint32_t c = 0; c < control().num_cells(); ++c) {
      cells += lockfree::state_of(control().word(c)) != lockfree::CellState::kFree;
    }
    return cells;
  }

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

void an_invalid_descriptor_is_refused_with_its_fault() {
  using memory::make_address;
  const struct {
    std::function<void(Cell&)> damage;
    const char* said;
  } cases[] = {
      {[](Cell& c) { c.descriptor.dtype = 14; }, "dtype 14 does not exist"},
      {[](Cell& c) { c.descriptor.ndim = 5; }, "ndim=5 exceeds 4"},
      {[](Cell& c) { c.descriptor.shape[0] = 65; }, "its shape and dtype do not make 64 bytes"},
      {[](Cell& c) { c.descriptor.bytes = c.descriptor.shape[0] = 4097; }, "4097 bytes at address"},
      {[](Cell& c) { c.descriptor.address += 4096; }, "are not in its slab of 4096 bytes"},
      {[](Cell& c) { c.descriptor.producer = 0; }, "lane 0 did not lease its slab"},
      {[](Cell& c) { c.descriptor.producer = c.producer = 8; }, "lane 8 did not lease its slab"},
      {[](Cell& c) { c.descriptor.address = c.slab = make_address(1, 2, 0); },
       "segment 2 does not exist"},
      {[](Cell& c) { c.descriptor.address = c.slab = make_address(2, 1, 0); },
       "its address names generation 2 of segment 1, which is in generation 1"},
  };
  for (const auto& [damage, said] : cases) {
    Fixture f;
    f.lease()->publish({1, 0});
    f.lease()->publish({2, 0});
    damage(f.control().cell(0));
    const std::string text = corrupt([&] { f.consumer->try_get(); });
    CHECK(says(text, said) && says(text, "ring 'a': an item in cell 0") && says(text, "make"));
    // Reported once: it is counted as lost, its slab is free, and the next item is delivered.
    CHECK(f.next_key() == 2);
    CHECK(f.in_use() == 0);
  }
}

void the_other_items_of_a_batch_with_a_refused_one_are_delivered() {
  Fixture f;
  const std::array leases{f.lease(), f.lease(), f.lease()};
  f.producer->publish_many(leases, std::array<Key, 3>{{{1, 0}, {2, 0}, {3, 0}}});
  f.control().cell(1).descriptor.dtype = 99;
  CHECK(f.take_all() == 1);
  CHECK(says(corrupt([&] { f.take_all(); }), "dtype 99"));
  CHECK(f.take_all() == 1);
  CHECK(f.in_use() == 0);
}

void items_that_a_full_ring_does_not_take_back_are_freed() {
  Fixture f;
  const std::array leases{f.lease(), f.lease(), f.lease()};
  f.producer->publish_many(leases, std::array<Key, 3>{{{1, 0}, {2, 0}, {3, 0}}});
  f.control().cell(0).descriptor.dtype = 99;
  // The next slot to be filled is a lap behind: so the ring seems to be full.
  f.control().ring_header(0).hints.tail = f.control().geometry().ring_capacity + 1;
  CHECK(says(corrupt([&] { f.take_all(); }), "dtype 99"));
  CHECK(f.in_use() == 0);
}

void memory_beyond_a_segment_is_not_viewed() {
  Fixture f;
  f.lease()->publish({1, 0});
  Cell& cell = f.control().cell(0);
  // Inside its slab, according to the cell, and beyond the segment.
  cell.slab_bytes = cell.descriptor.bytes = cell.descriptor.shape[0] = 16385;
  CHECK(says(corrupt([&] { f.consumer->try_get(); }), "beyond segment 1 of 16384 bytes"));
  f.lease()->publish({2, 0});
  cell.descriptor.bytes = cell.descriptor.shape[0] = 16385;
  // Inside the segment, according to its entry, and beyond the mapping.
  f.control().segment(0).bytes = 1 << 20;
  CHECK_THROWS(f.consumer->try_get(), StaleAddress);
  CHECK(f.in_use() == 0);
}

void memory_of_an_impossible_kind_is_not_viewed() {
  const auto said = [](memory::Kind kind, std::uint64_t device) {
    Fixture f;
    f.lease()->publish({1, 0});
    f.control().segment(0).kind = kind;
    f.control().segment(0).device_low = device;
    const std::string text = corrupt([&] { f.consumer->try_get(); });
    CHECK(f.in_use() == 0);
    return text;
  };
  CHECK(says(said(memory::Kind{4}, 1), "the entry of segment 1 names memory of kind 4 on device"));
  CHECK(says(said(memory::Kind::kMemfd, 1), "of kind 'memfd' on device 00000000-0000-0000-0000-"));
  CHECK(says(said(memory::Kind::kVmm, 0), "of kind 'vmm', which is not valid"));
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
  CHECK(says(corrupt([&] { f.consumer->try_get(); }), "its slots and hints contradict each other"));
}

void a_pop_from_a_contradictory_ring_ends() {
  Fixture f;
  const std::uint32_t capacity = f.control().geometry().ring_capacity;
  auto* slots = reinterpret_cast<lockfree::AtomicSlot*>(&f.control().ring_header(0) + 1);
  for (std::uint32_t i = 0; i < capacity; ++i) slots[i] = lockfree::full_slot(1 << 20, {0, 1});
  CHECK(says(corrupt([&] { f.consumer->try_get(); }), "its slots and hints contradict each other"));
}

void a_cell_reused_by_another_lane_is_not_released() {
  Fixture f;
  const auto lease = f.lease();
  const auto theirs = lockfree::cell_word(lockfree::CellState::kTaken, 7, 0);
  f.control().word(0) = theirs;
  CHECK(says(corrupt([&] { lease->publish({1, 0}); }),
             "was reused before this producer published it"));
  lease->abort();
  CHECK(f.control().word(0) == theirs);
  f.lease()->publish({2, 0});
  const auto item = f.consumer->try_get();
  f.control().word(1) = theirs;
  CHECK(says(corrupt([&] { item->release(); }), "was reused before this consumer released it"));
  CHECK(f.control().word(1) == theirs);
}

void a_file_with_impossible_sizes_is_refused() {
  Fixture f;
  const std::string path = os::runtime_folder() + "/" + f.pool->name() + "/control";
  const auto open = [&] { Pool::open(f.pool->name(), "", Deadline::in(0)); };
  Header& header = f.control().header();
  const Geometry right = header.geometry;
  const auto wrong = [&](auto member, std::uint32_t value) {
    header.geometry.*member = value;
    CHECK(says(corrupt(open), "impossible sizes"));
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
  an_invalid_descriptor_is_refused_with_its_fault();
  the_other_items_of_a_batch_with_a_refused_one_are_delivered();
  items_that_a_full_ring_does_not_take_back_are_freed();
  memory_beyond_a_segment_is_not_viewed();
  memory_of_an_impossible_kind_is_not_viewed();
  a_slab_that_is_not_in_its_segment_is_not_leased();
  a_slot_that_names_no_cells_is_refused({4, 2});
  a_slot_that_names_no_cells_is_refused({0, 0});
  a_pop_from_a_contradictory_ring_ends();
  a_cell_reused_by_another_lane_is_not_released();
  a_file_with_impossible_sizes_is_refused();
}
