#pragma once

#include <atomic>
#include <cstdint>

#include "channel/layout/control.hpp"
#include "lockfree/cell_word.hpp"

namespace flowtrain::channel {

/// Frees a cell and wakes waiting producers. Wait-free. Only for the participant that may write the
/// cell's word, see cell_word.hpp.
inline void release_cell(const Control& control, std::uint32_t cell) noexcept {
  lockfree::release(control.word(cell));
  // Orders the store before the reads in note_free (see FreeMap) and notify (see os::Event).
  std::atomic_thread_fence(std::memory_order_seq_cst);
  control.free_map().note_free(cell);
  control.header().space.notify_after_fence();
}

}  // namespace flowtrain::channel
