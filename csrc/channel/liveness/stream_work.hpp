#pragma once

#include <cstdint>
#include <utility>

#include "channel/layout/control.hpp"

namespace flowtrain::channel {

/// Calls `visit(cells)` for each segment in memory of a device, until it returns true; whether it
/// did.
template <class Visit>
bool any_device_segment(const Control& control, Visit&& visit) noexcept {
  for (std::uint32_t i = 0; i < control.num_segments(); ++i) {
    const SegmentEntry& entry = control.segment(i);
    const auto word = entry.word.load(std::memory_order_acquire);  // sync: segment.word
    if (has_cells(word) && entry.kind != memory::Kind::kMemfd && visit(control.cells_of(entry))) {
      return true;
    }
  }
  return false;
}

/// Whether a cell's slab is in memory of a device.
inline bool is_on_device(const Control& control, std::uint32_t cell) noexcept {
  return any_device_segment(
      control, [cell](const CellRange& cells) { return cells.first <= cell && cell < cells.end; });
}

/// Slabs in memory of devices that a lane holds, and unfinished work of its streams on such slabs;
/// see memory::StreamPage.
///
/// Memory:   the pool's control tables.
/// Threads:  one process at a time settles a lane.
/// Progress: takes time linear in the cells of such segments; never waits.
/// Ordering: cell.word, and as StreamPage.
/// Errors:   never throws.
class StreamWork {
 public:
  StreamWork(const Control& control, std::uint16_t lane) : control_(control), lane_(lane) {}

  /// Whether a stream of the lane has yet to write a word.
  bool pending() const noexcept {
    return any_device_segment(control_,
                              [&](const CellRange& cells) { return part(cells).has_work(lane_); });
  }

  /// Whether the lane holds or moves a cell.
  bool holds() const noexcept {
    const lockfree::LaneIntent& intent = control_.lane(lane_).intent;
    const auto moving = {
        lockfree::run_of(
            intent.publishing.load(std::memory_order_acquire)),            // sync: lane.publishing
        lockfree::run_of(intent.taking.load(std::memory_order_acquire))};  // sync: lane.taking
    return any_device_segment(control_, [&](const CellRange& cells) {
      for (const lockfree::Run& run : moving) {
        if (run.count > 0 && run.first < cells.end && cells.first < run.first + run.count) {
          return true;
        }
      }
      for (std::uint32_t c = cells.first; c < cells.end; ++c) {
        const auto word = control_.word(c).load(std::memory_order_acquire);  // sync: cell.word
        const auto state = lockfree::state_of(word);
        if (lockfree::owner_of(word) == lane_ &&
            (state == lockfree::CellState::kLeased || state == lockfree::CellState::kTaken)) {
          return true;
        }
      }
      return false;
    });
  }

  /// Whether the lane's process can still do something to a slab while it runs: it holds or moves a
  /// cell, its streams have work, or it has not confirmed an item.
  bool any() const noexcept {
    return holds() || any_device_segment(control_, [&](const CellRange& cells) {
             return part(cells).must_settle(lane_);
           });
  }

  /// Whether a stream of any lane has yet to write a word.
  static bool any_lane_pending(const Control& control) noexcept {
    return any_device_segment(control, [&](const CellRange& cells) {
      return !control.streams().part(cells.first, cells.end - cells.first).is_idle();
    });
  }

  /// As StreamPage::settle.
  bool settle() const noexcept {
    bool done = true;
    any_device_segment(control_, [&](const CellRange& cells) {
      done &= part(cells).settle(lane_);
      return false;
    });
    return done;
  }

 private:
  memory::StreamPage part(const CellRange& cells) const noexcept {
    return control_.streams().part(cells.first, cells.end - cells.first);
  }

  const Control& control_;
  std::uint16_t lane_;
};

}  // namespace flowtrain::channel
