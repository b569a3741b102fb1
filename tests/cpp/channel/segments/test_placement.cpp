// Entries and cells of segments, and their reuse by later ones.

#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <iterator>
#include <map>
#include <memory>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "base/error.hpp"
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

/// `count` slabs, each of a cache line.
memory::Carving slabs(std::uint32_t count) { return memory::carve({{64, count}}); }

/// Whether a segment of `count` slabs is refused with this text.
bool says(Pool& pool, std::uint32_t count, const std::string& text) {
  try {
    pool.add_segment(slabs(count), false);
  } catch (const PoolSpace& error) {
    return std::string(error.what()).find(text) != std::string::npos;
  }
  return false;
}

/// Index of the segment of each cell, or -1.
std::vector<int> check_cells_are_of_one_segment(const Control& control) {
  std::vector<int> owners(control.geometry().max_cells, -1);
  for (std::uint32_t i = 0; i < kMaxSegments; ++i) {
    const SegmentEntry& entry = control.segment(i);
    if (!has_cells(entry.word)) continue;
    const CellRange cells = control.cells_of(entry);
    for (std::uint32_t c = cells.first; c < cells.end; ++c) {
      CHECK(owners[c] < 0);
      owners[c] = static_cast<int>(i);
    }
  }
  return owners;
}

std::string unique_name(const char* what) {
  return std::string("cpp-") + what + "-" + std::to_string(::getpid());
}

/// An address of a former use of an entry never resolves, however often the entry is reused.
void an_address_stays_stale() {
  const auto pool = Pool::create({unique_name("stale"), "main", {"default"}, 1, 8});
  const memory::Address first = memory::make_address(1, 1, 0);
  CHECK(pool->add_segment(one_page(), false) == 1 && pool->segments().resolve(first, 4096));
  for (int use = 0; use < 256; ++use) {
    pool->drop_segment(1);
    CHECK(pool->add_segment(one_page(), false) == 1 && !pool->segments().resolve(first, 4096));
  }
  pool->close();
}

void an_entry_without_a_new_generation_is_not_reused() {
  const auto pool = Pool::create({unique_name("last"), "main", {"default"}, kMaxSegments, 8});
  std::atomic<SegmentWord>& word = pool->control().segment(0).word;
  bool refuse = false;
  pool->segments().attach("test",
                          [&](const memory::Memory&, const std::string&) -> std::shared_ptr<void> {
                            if (refuse) throw SystemCallError("refused");
                            return nullptr;
                          });
  CHECK(pool->add_segment(one_page(), false) == 1);
  pool->drop_segment(1);
  word = segment_word(SegmentState::kDead, kLastGeneration - 1, pool->lane());
  refuse = true;
  CHECK_THROWS(pool->add_segment(one_page(), false), SystemCallError);  // Uses no generation.
  refuse = false;
  CHECK(pool->add_segment(one_page(), false) == 1 && generation_of(word) == kLastGeneration);
  pool->drop_segment(1);
  // Its cells stay usable by other entries.
  for (std::uint32_t number = 2; number <= kMaxSegments; ++number) {
    CHECK(pool->add_segment(one_page(), false) == number);
  }
  CHECK(says(*pool, 1, "all 64 segments are in use or have had their 65535 uses (1)"));
  pool->drop_segment(9);
  CHECK(pool->add_segment(one_page(), false) == 9);
  pool->close();
}

/// Two handles alternately drop a segment and add a larger one. With 40 cells there are always 14
/// in a row beside 5, and 5 beside 14.
void growing_segments_reuse_the_cells_of_former_ones() {
  const auto pool = Pool::create({unique_name("grow"), "main", {"default"}, 40, 8});
  const auto other = Pool::open(pool->name(), "other", Deadline::in(5));
  std::uint32_t mine = pool->add_segment(slabs(1), false);
  std::uint32_t theirs = other->add_segment(slabs(1), false);
  for (std::uint32_t step = 0; step < 280; ++step) {
    pool->drop_segment(mine);
    mine = pool->add_segment(slabs(1 + step % 14), false);
    check_cells_are_of_one_segment(pool->control());
    if (step % 3 != 0) continue;
    other->drop_segment(theirs);
    theirs = other->add_segment(slabs(1 + step / 3 % 5), false);
    check_cells_are_of_one_segment(pool->control());
  }
  CHECK(pool->control().num_segments() == 2);
  other->close();
  pool->close();
}

/// After any adds and drops, a segment fits wherever enough consecutive cells are free.
void a_segment_fits_into_any_large_enough_gap() {
  constexpr std::uint32_t kCells = 60;
  const auto pool = Pool::create({unique_name("model"), "main", {"default"}, kCells, 8});
  const Control& control = pool->control();
  std::map<std::uint32_t, std::uint64_t> live;  // Addresses by segment number.
  std::vector<memory::Address> gone;
  std::mt19937 random(7);
  const auto draw = [&](std::uint32_t end) { return static_cast<std::uint32_t>(random() % end); };
  int refused = 0;
  for (int step = 0; step < 1000; ++step) {
    if (!live.empty() && draw(2) == 0) {
      const auto which = std::next(live.begin(), draw(static_cast<std::uint32_t>(live.size())));
      gone.push_back(which->second);
      pool->drop_segment(which->first);
      live.erase(which);
    } else {
      const std::uint32_t wanted = 1 + draw(16);
      std::uint32_t row = 0, longest = 0;
      const std::vector<int> owners = check_cells_are_of_one_segment(control);
      for (const int owner : owners) longest = std::max(longest, row = owner < 0 ? row + 1 : 0);
      if (longest < wanted) {
        const auto free = std::count(owners.begin(), owners.end(), -1);
        const std::string all = std::to_string(free) + " of max_cells=60 cells are free";
        const std::string row_only =
            all + ", but at most " + std::to_string(longest) + " are consec";
        CHECK(says(*pool, wanted, free < wanted ? all + "; raise max_cells" : row_only));
        ++refused;
      } else {
        const std::uint32_t number = pool->add_segment(slabs(wanted), false);
        const SegmentWord word = control.segment(number - 1).word;
        live[number] =
            memory::make_address(generation_of(word), static_cast<std::uint8_t>(number), 0);
      }
    }
    for (const auto& [number, address] : live) CHECK(pool->segments().resolve(address, 64));
  }
  CHECK(pool->segments().map_all(Deadline::in(30), {}));  // Drops dead segments.
  for (const memory::Address address : gone) CHECK(!pool->segments().resolve(address, 64));
  CHECK(refused > 50);
  pool->close();
}

/// An owner that dies while it adds a segment leaves all cells to others, at any point.
void a_death_while_adding_a_segment_loses_no_cells() {
  const auto pool = Pool::create({unique_name("death"), "main", {"default"}, 8, 8});
  SegmentEntry& entry = pool->control().segment(0);
  const auto check_all_fits = [&] {
    const std::uint32_t number = pool->add_segment(slabs(8), false);
    CHECK(says(*pool, 1, "0 of max_cells=8 cells are free; raise max_cells"));
    pool->drop_segment(number);
  };
  // Died before it claimed the entry: no entry has these cells.
  entry.first_cell = 2;
  entry.num_cells = 5;
  pool->control().header().num_cells = 7;
  check_all_fits();
  // Died after it.
  constexpr std::uint16_t kDead = 7;
  const auto generation = static_cast<std::uint16_t>(generation_of(entry.word) + 1);
  entry.first_cell = 2;
  entry.num_cells = 5;
  entry.word = segment_word(SegmentState::kMaking, generation, kDead);
  CHECK(says(*pool, 4, "3 of max_cells=8 cells are free"));
  CHECK(pool->add_segment(slabs(1), false) == 2);
  pool->drop_segment(2);
  pool->segments().drain_all(kDead);
  check_all_fits();
  pool->close();
}

/// SlabMaker checks that cells are of its segment, then writes to them. In between, no cell may
/// change its segment.
void a_segment_is_added_only_without_the_carving_lock_held() {
  const auto pool = Pool::create({unique_name("carve"), "main", {"default"}, 1, 8});
  const os::Fd folder = os::open_pool_folder(pool->name());
  const os::Fd control = os::open_file(os::path_in(folder, "control"));
  Lanes lanes(pool->control(), control);  // As another process sees them.
  CHECK(lanes.try_lock(PoolLock::kAssignment) && !lanes.try_lock(PoolLock::kAssignment));
  std::atomic<bool> added = false;
  std::thread adder([&] {
    pool->add_segment(memory::carve_on_demand(4096, 1), false);
    added = true;
  });
  ::usleep(50'000);
  CHECK(!added && state_of(pool->control().segment(0).word) == SegmentState::kEmpty);
  lanes.unlock(PoolLock::kAssignment);
  adder.join();
  CHECK(added);
  pool->close();
}

/// Two handles add and drop segments while both lease: a search that began in a segment that ended
/// leases nothing of the segment that has its cells.
void leases_stay_intact_while_cells_change_segments() {
  const auto pool = Pool::create({unique_name("move"), "main", {"default"}, 48, 16});
  const auto work = [&](const std::shared_ptr<Pool>& handle, std::uint64_t mark) {
    const auto producer =
        std::make_shared<Producer>(handle, "default", std::nullopt, Producer::Credits{});
    std::mt19937 random(static_cast<std::uint32_t>(mark));
    for (int step = 0; step < 300; ++step) {
      std::uint32_t number = 0;
      try {
        const auto count = static_cast<std::uint32_t>(1 + random() % 12);
        number = handle->add_segment(
            step % 3 == 0 ? memory::carve_on_demand(4096, count) : slabs(count), false);
      } catch (const PoolSpace&) {
        continue;
      }
      std::vector<std::shared_ptr<Lease>> leases;
      for (int i = 0; i < 8; ++i) {
        try {
          leases.push_back(producer->lease({8, 1, {64, 0, 0, 0}, 64}, Deadline::in(0)));
        } catch (const PoolTimeout&) {
          break;
        } catch (const PoolSpace&) {
          break;
        }
        for (int w = 0; w < 8; ++w) {
          reinterpret_cast<std::uint64_t*>(leases.back()->data())[w] = mark + leases.size();
        }
      }
      handle->drop_segment(number);
      for (std::size_t i = 0; i < leases.size(); ++i) {
        for (int w = 0; w < 8; ++w) {
          CHECK(reinterpret_cast<std::uint64_t*>(leases[i]->data())[w] == mark + i + 1);
        }
        leases[i]->abort();
      }
    }
  };
  const auto other = Pool::open(pool->name(), "other", Deadline::in(5));
  std::thread theirs([&] { work(other, 1000); });
  work(pool, 2000);
  theirs.join();
  other->close();
  pool->segments().sweep();
  CHECK(segment_infos(pool->control()).empty());
  pool->add_segment(slabs(48), false);
  pool->close();
}

/// An inspection while segments are added and dropped never mixes two of them.
void inspection_skips_a_segment_that_ends_meanwhile() {
  constexpr std::uint32_t kCells = 20000;
  const auto pool = Pool::create({unique_name("look"), "main", {"default"}, kCells, 8});
  std::atomic<bool> done = false;
  std::thread looking([&] {
    while (!done) {
      for (const SegmentInfo& info : segment_infos(pool->control())) {
        CHECK(info.classes.size() == 1 && info.classes[0].slabs == kCells);
        CHECK(info.bytes == round_up(info.classes[0].slab_bytes * kCells, kPageBytes));
      }
    }
  });
  for (std::uint32_t step = 0; step < 200; ++step) {
    pool->add_segment(memory::carve({{64 + 64 * (step % 2), kCells}}), false);
    ::usleep(100);
    pool->drop_segment(1);
  }
  done = true;
  looking.join();
  pool->close();
}

}  // namespace

int main() {
  an_address_stays_stale();
  an_entry_without_a_new_generation_is_not_reused();
  growing_segments_reuse_the_cells_of_former_ones();
  a_segment_fits_into_any_large_enough_gap();
  a_death_while_adding_a_segment_loses_no_cells();
  a_segment_is_added_only_without_the_carving_lock_held();
  leases_stay_intact_while_cells_change_segments();
  inspection_skips_a_segment_that_ends_meanwhile();
}
