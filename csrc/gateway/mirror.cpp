#include "gateway/mirror.hpp"

#include <algorithm>
#include <utility>

#include "base/error.hpp"
#include "channel/layout/dtype.hpp"
#include "memory/carve.hpp"

namespace flowtrain::gateway {
namespace {

memory::Carving carving_of(const std::vector<SourcePart>& parts) {
  if (parts.size() == 1 && parts[0].slab_bytes == 0) {
    return memory::carve_on_demand(parts[0].bytes, parts[0].count);
  }
  std::vector<memory::SlabClass> classes;
  for (const SourcePart& part : parts) classes.push_back({part.slab_bytes, part.count});
  return memory::carve(std::move(classes));
}

/// So many bytes, to be shrunk to the item once it has arrived.
channel::Layout room(std::uint64_t bytes) {
  static const std::uint8_t uint8 = *channel::dtype_number("uint8");
  return {uint8, 0, {}, bytes};
}

}  // namespace

Mirror::Mirror(channel::Pool& pool, transport::Transport& transport, SegmentMaker& maker,
               const std::vector<SourcePart>& parts)
    : pool_(pool), transport_(transport), made_(maker.make(carving_of(parts))) {}

Mirror::~Mirror() {
  if (memory_) transport_.remove_region(region_);
}

bool Mirror::is_ready() {
  if (is_safe_) return true;
  if (!memory_) {
    segment_ = made_->number();
    if (segment_ == 0) return false;
    pool_.check_open();
    auto memory = pool_.segments().memory_of(segment_);
    region_ = transport_.add_region(memory->host(), memory->bytes());
    memory_ = std::move(memory);
  }
  const channel::Control& control = pool_.control();
  const auto word =
      control.segment(segment_ - 1).word.load(std::memory_order_acquire);  // sync: segment.word
  for (std::uint32_t i = 0; i < control.geometry().max_lanes && !is_safe_; ++i) {
    const channel::Lane& lane = control.lane(i);
    is_safe_ = lane.role == channel::LaneRole::kPool && !pool_.lanes().holds(i) &&
               lane.mapped[segment_ - 1].load(std::memory_order_acquire) ==  // sync: lane.mapped
                   channel::generation_of(word) &&
               pool_.lanes().is_alive(i);
  }
  return is_safe_;
}

std::shared_ptr<channel::Lease> Mirror::try_lease(std::uint16_t ring, std::uint64_t bytes) {
  std::shared_ptr<channel::Producer>& producer = producers_[ring];
  if (!producer) {
    producer = std::make_shared<channel::Producer>(pool_.shared_from_this(),
                                                   pool_.control().ring_name(ring), segment_,
                                                   channel::Producer::Credits{});
  }
  return producer->try_lease(room(bytes));
}

std::optional<transport::Grant> Mirror::grant(std::uint64_t session, const channel::Lease& lease) {
  const std::uint64_t offset = memory::offset_of(lease.address());
  return transport_.grant(session, region_, offset, lease.layout().bytes);
}

}  // namespace flowtrain::gateway
