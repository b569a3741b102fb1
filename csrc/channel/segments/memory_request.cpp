#include "channel/segments/memory_request.hpp"

#include <utility>

#include "channel/segments/segment_table.hpp"
#include "os/folder.hpp"

namespace flowtrain::channel {

std::string socket_of(const os::Fd& folder, std::uint16_t lane) {
  return os::path_in(folder, std::to_string(lane) + ".sock");
}

MemoryRequest::MemoryRequest(const Control& control, const Lanes& lanes, const os::Fd& folder,
                             std::string what, std::uint32_t index, SegmentWord word)
    : control_(control),
      lanes_(lanes),
      folder_(folder),
      what_(std::move(what)),
      index_(index),
      word_(word),
      holder_(owner_of(word)) {}

bool MemoryRequest::is_answered() {
  if (!pending_) ask(holder_);
  return !pending_->waiting();
}

std::optional<os::Exported> MemoryRequest::take() {
  std::optional<os::Exported> answer = pending_->answer();
  pending_.reset();
  return answer;
}

bool MemoryRequest::ask_on() {
  // The request to a living holder may still be answered, or be sent again.
  const std::optional<std::uint16_t> holder = find_holder();
  if (!holder || !(pending_ || os::is_linked(folder_))) return false;
  if (*holder != holder_) ask(*holder);
  return true;
}

void MemoryRequest::ask(std::uint16_t holder) {
  holder_ = holder;
  patience_ = Deadline::in(kOwnerResponseS);
  pending_.emplace(what_, socket_of(folder_, holder),
                   os::FdRequest{control_.header().nonce, address_of(index_, word_)});
}

/// The living handle to get the memory from: its owner, or when that is gone, one that has mapped
/// it; the next one if the last one asked does not answer.
std::optional<std::uint16_t> MemoryRequest::find_holder() const noexcept {
  const auto can_answer = [&](std::uint16_t lane) {
    return !lanes_.holds(lane) && !refused_.contains(lane) && lanes_.is_alive(lane);
  };
  const std::uint16_t owner = owner_of(word_);
  if (can_answer(owner)) return owner;
  const std::uint32_t lanes = lanes_.size();
  const bool next = !pending_ || patience_.passed();
  const std::uint32_t first = holder_ + (next ? 1U : 0U);
  for (std::uint32_t i = 0; i < lanes; ++i) {
    const auto number = static_cast<std::uint16_t>((first + i) % lanes);
    const Lane& lane = control_.lane(number);
    const auto mapped = lane.mapped[index_].load(std::memory_order_acquire);  // sync: lane.mapped
    if (mapped == generation() && lane.role == LaneRole::kPool && can_answer(number)) {
      return number;
    }
  }
  return std::nullopt;
}

}  // namespace flowtrain::channel
