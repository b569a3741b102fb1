#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

#include "channel/layout/control.hpp"

namespace flowtrain::channel {

/// The items of one producer that are in flight: leased or published, and not released by a reader.
///
/// Released items are found by the generations of their cells. No process counts them down, so no
/// death can lose or double a credit.
///
/// Memory:   a list of cells, in the producer's process.
/// Threads:  one at a time.
/// Progress: wait-free, except for the growth of the list.
/// Ordering: cell.word, read with acquire.
/// Errors:   never throws; if the list cannot grow, the process ends.
class InFlight {
 public:
  InFlight(const Control& control, std::int64_t max_items, std::int64_t max_bytes)
      : control_(&control), max_items_(max_items), max_bytes_(max_bytes) {}

  /// Reserves the credit for one item; false if a limit is reached.
  bool try_reserve(std::uint64_t bytes) noexcept {
    // Without limits this still runs now and then, so that the list stays short.
    if (!has_credit(bytes) || items_.size() >= 2 * std::size_t{control_->num_cells()}) {
      drop_released();
    }
    if (!has_credit(bytes)) return false;
    bytes_ += static_cast<std::int64_t>(bytes);
    return true;
  }
  /// Returns a reserved credit for which there was no slab.
  void cancel(std::uint64_t bytes) noexcept { bytes_ -= static_cast<std::int64_t>(bytes); }
  /// Uses a reserved credit for a leased cell.
  void add(std::uint32_t cell, lockfree::CellWord word, std::uint64_t bytes) noexcept {
    items_.push_back({cell, lockfree::generation_of(word), static_cast<std::int64_t>(bytes)});
  }

  /// Returns the part of its credit that a leased cell does not need.
  void shrink(std::uint32_t cell, std::uint64_t bytes) noexcept {
    // The last one of the cell is the present lease, and most leases that shrink are recent.
    const auto item = std::find_if(items_.rbegin(), items_.rend(),
                                   [cell](const Leased& leased) { return leased.cell == cell; });
    if (item == items_.rend()) return;
    bytes_ -= item->bytes - static_cast<std::int64_t>(bytes);
    item->bytes = static_cast<std::int64_t>(bytes);
  }

  void drop_released() noexcept {
    std::erase_if(items_, [this](const Leased& item) {
      const auto word =
          control_->word(item.cell).load(std::memory_order_acquire);  // sync: cell.word
      if (lockfree::generation_of(word) == item.generation) return false;
      bytes_ -= item.bytes;
      return true;
    });
  }

  std::int64_t items() const noexcept { return static_cast<std::int64_t>(items_.size()); }
  std::int64_t bytes() const noexcept { return bytes_; }

 private:
  struct Leased {
    std::uint32_t cell;
    std::uint64_t generation;
    std::int64_t bytes;
  };

  bool has_credit(std::uint64_t bytes) const noexcept {
    return items() < max_items_ && bytes_ <= max_bytes_ - static_cast<std::int64_t>(bytes);
  }

  const Control* control_;
  std::int64_t max_items_;
  std::int64_t max_bytes_;
  std::vector<Leased> items_;
  std::int64_t bytes_ = 0;
};

}  // namespace flowtrain::channel
