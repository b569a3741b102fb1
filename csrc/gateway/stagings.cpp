#include "gateway/stagings.hpp"

#include <string>

namespace flowtrain::gateway {

SegmentStaging::SegmentStaging(const memory::Resource& resource,
                               std::shared_ptr<const memory::Memory> segment,
                               transport::Transport& transport, memory::OnDone on_done,
                               const std::string& name)
    : transport_(transport) {
  const auto region = transport.add_device_region(segment->address(), segment->bytes());
  reads_device_ = region.has_value();
  const auto copies = reads_device_ ? memory::Copies::kNone : memory::Copies::kToHost;
  try {
    staging_ = resource.staging(std::move(segment), copies, std::move(on_done), name);
  } catch (...) {
    if (reads_device_) transport.remove_region(*region);
    throw;
  }
  region_ = reads_device_ ? *region : transport.add_region(staging_->data(), staging_->bytes());
}

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
  if (item.data() != nullptr) return nullptr;
  const memory::Address address = item.descriptor().address;
  const auto found = by_source_.find(source_of(address));
  if (found != by_source_.end()) return found->second;
  const channel::SlabView& slab = item.slab();
  const std::string name = pool_.name() + "." + std::to_string(memory::segment_of(address));
  auto made = std::make_shared<SegmentStaging>(pool_.segments().resource_for(slab), slab.memory,
                                               transport_, on_done_, name);
  return by_source_.emplace(source_of(address), std::move(made)).first->second;
}

void Stagings::sweep() {
  std::erase_if(by_source_, [&](const auto& each) { return !lasts(pool_.control(), each.first); });
  for (const auto& [source, staging] : by_source_) staging->check();
}

}  // namespace flowtrain::gateway
