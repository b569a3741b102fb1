#include "check.hpp"
#include "lockfree/cell_word.hpp"
#include "lockfree/slot.hpp"

using namespace flowtrain::lockfree;

namespace {

void slot_fields_do_not_overlap() {
  const SlotWord full = full_slot(kLapMask, {0, 1});
  CHECK(is_full(full) && phases_past(full, kLapMask) == 1 && run_in(full) == (Run{0, 1}));
  const Run largest{kMaxCells - 1, kMaxRunCells};
  const SlotWord last = full_slot(0, largest);
  CHECK(is_full(last) && phases_past(last, 0) == 1 && run_in(last) == largest);
  CHECK(!is_full(empty_slot(kLapMask)) && phases_past(empty_slot(kLapMask), kLapMask) == 0);
}

void the_lap_after_the_last_is_the_first() {
  CHECK(empty_slot(kLapMask + 1) == empty_slot(0));
  CHECK(full_slot(kLapMask + 1, {7, 2}) == full_slot(0, {7, 2}));
  CHECK(phases_past(full_slot(0, {7, 2}), kLapMask) == 3);
  CHECK(phases_past(full_slot(kLapMask, {7, 2}), kLapMask + 1) == -1);
}

void a_run_holds_its_cells_and_no_other() {
  const Run run{5, 2};
  CHECK(!run.holds(4) && run.holds(5) && run.holds(6) && !run.holds(7));
  CHECK(!run_of(0).holds(0));
  CHECK(run_word({0, 1}) != 0);  // Not the word for "none".
}

void a_cell_keeps_its_generation_until_it_is_freed() {
  const CellWord owned = cell_word(CellState::kLeased, 0xfffe, kGenerationMask);
  const CellWord held = moved(owned, CellState::kTaken, 3);
  CHECK(state_of(held) == CellState::kTaken && owner_of(held) == 3);
  CHECK(generation_of(held) == generation_of(owned));
  CHECK(state_of(freed(held)) == CellState::kFree && owner_of(freed(held)) == 0);
  CHECK(generation_of(freed(held)) == 0);  // One after the last.
}

void each_publication_of_a_cell_has_a_word_of_its_own() {
  const CellWord first = moved(cell_word(CellState::kLeased, 3, 7), CellState::kPublished, 3);
  const CellWord second = moved(moved(first, CellState::kTaken, 3), CellState::kPublished, 3);
  CHECK(first != second && generation_of(second) == 7 && owner_of(second) == 3);
  CHECK(publications_of(second) == 2 && publications_of(freed(second)) == 0);
  const CellWord last = cell_word(CellState::kTaken, 0xffff, 7, kPublicationsMask);
  CHECK(moved(last, CellState::kPublished, 0xffff) ==
        cell_word(CellState::kPublished, 0xffff, 7, 0));
}

}  // namespace

int main() {
  slot_fields_do_not_overlap();
  the_lap_after_the_last_is_the_first();
  a_run_holds_its_cells_and_no_other();
  a_cell_keeps_its_generation_until_it_is_freed();
  each_publication_of_a_cell_has_a_word_of_its_own();
}
