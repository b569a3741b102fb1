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
  /// What somebody does who dies before the map hears of it.
  void free_silently(std::uint32_t c) { cells[c] = freed(cells[c]); }
  void free(std::uint32_t c) {
    free_silently(c);
    std::atomic_thread_fence(std::memory_order_seq_cst);
    map().note_free(c);
  }

  std::vector<AtomicCell> cells;
  std::vector<FreeMap::Bits> bits;
};

/// A range is searched from a cell on and round, wherever it begins and ends; what lies beside it
/// is left alone, also where it shares a group.
void a_range_is_searched_round() {
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

/// Groups that were found full are not looked at again until a cell of theirs is freed.
void what_is_full_is_passed_over_until_something_is_freed() {
  Fixture f(1024);
  while (f.find(0, 1024, 0) != kNone) continue;
  f.free_silently(700);
  CHECK(f.find(0, 1024, 0) == kNone);
  f.free(90);
  CHECK(f.find(0, 1024, 0) == 90 && f.find(0, 1024, 0) == kNone);
}

/// A death between the two steps of freeing hides a cell from the map, not from a scan.
void a_scan_finds_what_the_map_was_not_told_of() {
  Fixture f(1024);
  while (f.find(0, 1024, 0) != kNone) continue;
  f.free_silently(700);
  f.free_silently(701);
  CHECK(f.scan(0, 1024) == 700);
  CHECK(f.find(0, 1024, 0) == 701);  // The scan has told it.
}

/// A cell that is freed between the look at its group and the bit that says it is full, whose
/// freeing found no bit to clear, is not forgotten.
void a_cell_freed_while_its_group_is_marked_is_found() {
  Fixture f(8);
  for (std::uint32_t c = 0; c < 8; ++c) CHECK(f.own(c));
  const auto own = [&f](std::uint32_t c) { return f.own(c); };
  CHECK(f.map().find(0, 8, 0, own, [&f] { f.free(3); }) == kNone);
  CHECK(f.find(0, 8, 0) == 3);
}

}  // namespace

int main() {
  a_range_is_searched_round();
  what_is_full_is_passed_over_until_something_is_freed();
  a_scan_finds_what_the_map_was_not_told_of();
  a_cell_freed_while_its_group_is_marked_is_found();
}
