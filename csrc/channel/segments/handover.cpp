#include "channel/segments/handover.hpp"

#include <algorithm>
#include <vector>

namespace flowtrain::channel {

std::optional<Handover::Missing> Handover::find(bool all) const {
  std::vector<std::uint16_t> others;
  for (std::uint32_t i = 0; i < lanes_.size(); ++i) {
    const auto number = static_cast<std::uint16_t>(i);
    const Lane& lane = control_.lane(i);
    if (lane.role == LaneRole::kPool && number != lane_ && lanes_.is_alive(i) &&
        !lane.leaving.load(std::memory_order_relaxed)) {
      others.push_back(number);
    }
  }
  for (std::uint32_t i = 0; i < control_.num_segments(); ++i) {
    const auto word =
        control_.segment(i).word.load(std::memory_order_acquire);  // sync: segment.word
    if (!has_memory(word)) continue;
    const auto said = [&](std::uint16_t lane) {
      return control_.lane(lane).mapped[i].load(std::memory_order_acquire);  // sync: lane.mapped
    };
    const auto first = std::find_if(others.begin(), others.end(), [&](std::uint16_t lane) {
      return (said(lane) & ~Lane::kNotMapped) != generation_of(word);
    });
    if (first == others.end()) continue;
    const bool mapped_here = said(lane_) == generation_of(word);
    const bool by_none = std::none_of(others.begin(), others.end(), [&](std::uint16_t lane) {
      return said(lane) == generation_of(word);
    });
    const bool missing =
        creator_ ? mapped_here || !by_none : mapped_here && (all || by_none) && items_in(i) > 0;
    if (missing) return Missing{i, *first};
  }
  return std::nullopt;
}

std::uint32_t Handover::items_in(std::uint32_t segment) const noexcept {
  const CellRange cells = control_.cells_of(control_.segment(segment));
  std::uint32_t items = 0;
  for (std::uint32_t c = cells.first; c < cells.end; ++c) {
    const auto state =
        lockfree::state_of(control_.word(c).load(std::memory_order_acquire));  // sync: cell.word
    items += state == lockfree::CellState::kPublished || state == lockfree::CellState::kTaken;
  }
  return items;
}

}  // namespace flowtrain::channel
