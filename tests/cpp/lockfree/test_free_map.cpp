#include <set>
#include <vector>

#include "check.hpp"
#include "lockfree/free_map.hpp"

using namespace flowtrain::lockfree;

namespace {

constexpr std::uint32_t kNone = FreeMap::kNone;

/// Cells in plain memory, all free, with their map.
struct Fixture {
  explicit Fixture(std::uint32_t num_cells)
      : cells((num_cells + 7) / 8 * 8), bits(FreeMap::bits_for(num_cells)) {}
  FreeMap map() { return {bits.data(), cells.data()}; }

  bool own(std::uint32_t c, std::uint16_t lane = 0) {
    CellWord seen = cells[c];
    return state_of(seen) == CellState::kFree &&
           cells[c].compare_exchange_strong(seen, moved(seen, CellState::kLeased, lane));
  }
  std::uint32_t find(std::uint32_t first, std::uint32_t end, std::uint32_t from) {
    return map().find(first, end, from, [this](std::uint32_t c) { return own(c); });
  }
  std::uint32_t scan(std::uint32_t first, std::uint32_t end) {
    return map().scan(first, end, [this](std::uint32_t c) { return own(c); });
  }
  /// As by a process that dies before it tells the map.
  void free_without_map(std::uint32_t c) { cells[c] = freed(cells[c]); }
  void free(std::uint32_t c) {
    free_without_map(c);
    std::atomic_thread_fence(std::memory_order_seq_cst);
    map().note_free(c);
  }

  std::vector<AtomicCell> cells;
  std::vector<FreeMap::Bits> bits;
};

/// A search covers its range from any cell on and around, and leaves cells outside alone, also in a
/// shared group.
void a_search_covers_its_range_from_any_start() {
  constexpr std::uint32_t kCells = 1300;
  for (const auto& [first, end] : {std::pair{0U, 8U},
                                   {3U, 5U},
                                   {7U, 9U},
                                   {500U, 530U},
                                   {0U, kCells},
                                   {1021U, kCells},
                                   {512U, 1024U}}) {
    for (const std::uint32_t from : {first, (first + end) / 2, end - 1}) {
      Fixture f(kCells);
      std::set<std::uint32_t> found;
      for (std::uint32_t i = 0; i < end - first; ++i) {
        CHECK(f.find(first, end, from) == first + (from - first + i) % (end - first));
      }
      CHECK(f.find(first, end, from) == kNone);
      for (std::uint32_t c = 0; c < kCells; ++c) {
        CHECK((state_of(f.cells[c]) == CellState::kFree) == (c < first || c >= end));
      }
    }
  }
}

void a_full_group_is_skipped_until_a_cell_is_freed() {
  Fixture f(1024);
  while (f.find(0, 1024, 0) != kNone) continue;
  f.free_without_map(700);
  CHECK(f.find(0, 1024, 0) == kNone);
  f.free(90);
  CHECK(f.find(0, 1024, 0) == 90 && f.find(0, 1024, 0) == kNone);
}

/// A death between the two steps of a release hides a cell from the map, not from a scan.
void a_scan_finds_cells_hidden_by_the_map() {
  Fixture f(1024);
  while (f.find(0, 1024, 0) != kNone) continue;
  f.free_without_map(700);
  f.free_without_map(701);
  CHECK(f.scan(0, 1024) == 700);
  CHECK(f.find(0, 1024, 0) == 701);  // The scan has corrected the map.
}

/// A cell that is freed after a search read its group and before the search sets the bit.
void a_cell_freed_while_its_group_is_marked_is_found() {
  Fixture f(8);
  for (std::uint32_t c = 0; c < 8; ++c) CHECK(f.own(c));
  const auto own = [&f](std::uint32_t c) { return f.own(c); };
  CHECK(f.map().find(0, 8, 0, own, [&f] { f.free(3); }) == kNone);
  CHECK(f.find(0, 8, 0) == 3);
}

}  // namespace

int main() {
  a_search_covers_its_range_from_any_start();
  a_full_group_is_skipped_until_a_cell_is_freed();
  a_scan_finds_cells_hidden_by_the_map();
  a_cell_freed_while_its_group_is_marked_is_found();
}
