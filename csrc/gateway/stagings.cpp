#include "gateway/stagings.hpp"

#include <string>

namespace flowtrain::gateway {

SegmentStaging::SegmentStaging(std::unique_ptr<memory::Staging> staging,
                               transport::Transport& transport)
    : staging_(std::move(staging)),
      transport_(transport),
      region_(transport.add_region(staging_->data(), staging_->bytes())) {}

SegmentStaging::~SegmentStaging() { transport_.remove_region(region_); }

std::uint64_t SegmentStaging::fetch(channel::Item& item) {
  item.wait(staging_->stream());
  const auto offset = static_cast<std::uint64_t>(data_of(item) - staging_->data());
  staging_->fetch(offset, item.descriptor().bytes);
  return ++fetches_;
}

const std::byte* SegmentStaging::data_of(const channel::Item& item) const noexcept {
  const channel::SlabView& slab = item.slab();
  return staging_->data() + (slab.address - slab.memory->address());
}

std::shared_ptr<SegmentStaging> Stagings::of(const channel::Item& item) {
  if (item.data() != nullptr || item.descriptor().bytes == 0) return nullptr;
  std::shared_ptr<SegmentStaging>& found = by_source_[source_of(item.descriptor().address)];
  if (!found) {
    const channel::SlabView& slab = item.slab();
    const std::string name =
        pool_.name() + "." + std::to_string(memory::segment_of(item.descriptor().address));
    found = std::make_shared<SegmentStaging>(
        pool_.segments().resource_for(slab).staging(slab.memory, on_done_, name), transport_);
  }
  return found;
}

void Stagings::sweep() {
  std::erase_if(by_source_, [&](const auto& each) { return !lasts(pool_.control(), each.first); });
  for (const auto& [source, staging] : by_source_) staging->check();
}

}  // namespace flowtrain::gateway
