#include "check.hpp"
#include "lockfree/cell_word.hpp"
#include "lockfree/slot.hpp"

using namespace flowtrain::lockfree;

namespace {

void slot_fields_do_not_overlap() {
  const SlotWord full = full_slot(kLapMask, 0);
  CHECK(is_full(full) && lap_of(full) == kLapMask && index_of(full) == 0);
  const SlotWord last = full_slot(0, UINT32_MAX);
  CHECK(is_full(last) && lap_of(last) == 0 && index_of(last) == UINT32_MAX);
  CHECK(!is_full(empty_slot(kLapMask)) && lap_of(empty_slot(kLapMask)) == kLapMask);
}

void the_lap_after_the_last_is_the_first() {
  CHECK(empty_slot(kLapMask + 1) == empty_slot(0));
  CHECK(full_slot(kLapMask + 1, 7) == full_slot(0, 7));
}

void a_cell_keeps_its_generation_until_it_is_freed() {
  const CellWord owned = cell_word(CellState::kOwned, 0xfffe, kGenerationMask);
  const CellWord held = moved(owned, CellState::kHeld, 3);
  CHECK(state_of(held) == CellState::kHeld && owner_of(held) == 3);
  CHECK(generation_of(held) == generation_of(owned));
  CHECK(state_of(freed(held)) == CellState::kFree && owner_of(freed(held)) == 0);
  CHECK(generation_of(freed(held)) == 0);  // One after the last.
}

}  // namespace

int main() {
  slot_fields_do_not_overlap();
  the_lap_after_the_last_is_the_first();
  a_cell_keeps_its_generation_until_it_is_freed();
}
