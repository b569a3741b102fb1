#include "gateway/export.hpp"

#include <algorithm>
#include <string>
#include <utility>

#include "base/error.hpp"

namespace flowtrain::gateway {
namespace {

constexpr std::size_t kTakeAtOnce = 64;

Name name_of(const channel::Item& item) {
  return {item.cell(), static_cast<std::uint32_t>(item.generation())};
}

/// How a segment of this pool is divided, for its mirror.
std::vector<SourcePart> parts_of(const channel::Control& control, SourceId source) {
  const channel::SegmentEntry& entry = entry_of(control, source);
  const std::uint32_t classes = std::min<std::uint32_t>(entry.num_classes, channel::kMaxClasses);
  std::vector<SourcePart> parts;
  for (std::uint32_t k = 0; k < classes; ++k) {
    const channel::ClassEntry& size = entry.classes[k];
    parts.push_back({.source = source,
                     .part = k,
                     .num_parts = classes,
                     .slab_bytes = size.slab_bytes,
                     .count = size.count,
                     .bytes = entry.bytes});
  }
  if (classes == 0) {
    parts.push_back({.source = source,
                     .part = 0,
                     .num_parts = 1,
                     .slab_bytes = 0,
                     .count = entry.num_cells,
                     .bytes = entry.bytes});
  }
  return parts;
}

}  // namespace

void Export::add_ring(std::uint16_t ring) {
  // Of an item whose memory is gone nothing can be sent: counted, as in `items_lost`.
  consumers_.push_back(
      std::make_shared<channel::Consumer>(pool_, pool_->control().ring_name(ring), false));
  rings_.push_back(ring);
}

void Export::begin(std::shared_ptr<transport::Link> link, std::uint64_t session, Since since) {
  link_ = std::move(link);
  session_ = session;
  for (const auto& [source, parts] : sources_) announce(source);
  std::vector<std::uint32_t> theirs;
  for (auto& [cell, entry] : entries_) {
    if (since == Since::kNew) entry.is_acknowledged = false;
    if (entry.is_acknowledged && since == Since::kReplaced) {
      theirs.push_back(cell);
    } else if (entry.state != State::kStaging) {
      taken_.push_back(cell);
    }
  }
  for (const std::uint32_t cell : theirs) release(cell);
}

void Export::end() {
  link_.reset();
  announcements_.clear();
  taken_.clear();
  granted_.clear();
  placing_.clear();
  std::vector<std::uint32_t> released;
  for (auto& [cell, entry] : entries_) {
    if (entry.state != State::kStaging) entry.state = State::kTaken;
    if (entry.is_released) released.push_back(cell);
  }
  for (const std::uint32_t cell : released) release(cell);
}

bool Export::progress() {
  if (!link_) return false;
  bool did = take();
  did |= finish_staging();
  did |= send();
  return did;
}

bool Export::take() {
  bool did = false;
  for (std::size_t i = 0; i < rings_.size(); ++i) {
    for (;;) {
      const auto items = consumers_[i]->try_get_many(kTakeAtOnce);
      if (items.empty()) break;
      did = true;
      for (const std::shared_ptr<channel::Item>& item : items) {
        const SourceId source = source_of(item->descriptor().address);
        if (!sources_.contains(source)) {
          sources_[source] = parts_of(pool_->control(), source);
          announce(source);
        }
        Entry entry{.item = item, .ring = rings_[i], .staging = stagings_.of(*item)};
        if (entry.staging) {
          entry.state = State::kStaging;
          entry.fetch = entry.staging->fetch(*item);
        }
        (entry.staging ? staging_ : taken_).push_back(item->cell());
        entries_.insert_or_assign(item->cell(), std::move(entry));
      }
    }
  }
  return did;
}

/// Whether a fetch of a staging has ended.
bool Export::finish_staging() {
  const auto finish = [&](std::uint32_t cell) {
    const auto found = entries_.find(cell);
    // The peer may have told of a release by then: it had the item from an earlier process.
    if (found == entries_.end() || found->second.state != State::kStaging) return true;
    Entry& entry = found->second;
    if (!entry.staging->is_done(entry.fetch)) return false;
    try {
      entry.item->confirm();
    } catch (const StaleAddress&) {
      ++counts_.lost;
      release(cell);
      return true;
    }
    entry.state = State::kTaken;
    taken_.push_back(cell);
    if (entry.staging->copies()) ++counts_.staged_items;
    return true;
  };
  return std::erase_if(staging_, finish) > 0;
}

void Export::announce(SourceId source) {
  if (sources_[source].empty()) announcements_.push_back(header_of(Gone{.source = source}));
  for (const SourcePart& part : sources_[source]) announcements_.push_back(header_of(part));
}

bool Export::send() {
  bool did = false;
  for (; !announcements_.empty(); announcements_.pop_front(), did = true) {
    if (!link_->send(announcements_.front())) return did;
  }
  for (; !granted_.empty(); granted_.pop_front(), did = true) {
    if (!place(granted_.front(), entries_.at(granted_.front()))) return did;
  }
  for (; !taken_.empty(); taken_.pop_front(), did = true) {
    // The peer may have told of its release before it was asked.
    const auto found = entries_.find(taken_.front());
    if (found == entries_.end() || found->second.state != State::kTaken) continue;
    if (!want(found->first, found->second)) return did;
    found->second.state = State::kWanted;
  }
  return did;
}

bool Export::want(std::uint32_t cell, const Entry& entry) {
  const channel::Control& control = pool_->control();
  const channel::Descriptor& descriptor = entry.item->descriptor();
  const SourceId source = source_of(descriptor.address);
  const bool has_classes = sources_[source].front().slab_bytes != 0;
  return link_->send(
      header_of(Want{.ring = entry.ring,
                     .source = source,
                     .item = name_of(*entry.item),
                     .bytes = has_classes ? control.cell(cell).slab_bytes : descriptor.bytes}));
}

bool Export::place(std::uint32_t cell, Entry& entry) {
  const channel::Descriptor& descriptor = entry.item->descriptor();
  const Granted& grant = entry.grant;
  ItemHeader header{.dtype = descriptor.dtype,
                    .ndim = descriptor.ndim,
                    .item = name_of(*entry.item),
                    .key_low = descriptor.key_low,
                    .key_high = descriptor.key_high,
                    .shape = {}};
  std::copy(std::begin(descriptor.shape), std::end(descriptor.shape), header.shape);
  const auto number = link_->place(
      {session_, grant.slot, grant.generation, grant.region, grant.offset, grant.bytes},
      header_of(header), entry.staging ? entry.staging->data_of(*entry.item) : entry.item->data(),
      descriptor.bytes);
  if (!number) return false;
  placing_.emplace(*number, cell);
  return true;
}

void Export::on_granted(const Granted& granted) {
  Entry* const entry = find(granted.item);
  if (entry == nullptr || entry->state != State::kWanted) return;
  if (granted.bytes < entry->item->descriptor().bytes) {
    throw BrokenRule("a grant of " + std::to_string(granted.bytes) + " bytes for an item of " +
                     std::to_string(entry->item->descriptor().bytes));
  }
  entry->grant = granted;
  entry->state = State::kPlacing;
  if (!granted_.empty() || !place(granted.item.cell, *entry)) {
    granted_.push_back(granted.item.cell);
  }
}

void Export::on_told(const Told& told) {
  Entry* const entry = find(told.item);
  if (entry == nullptr) return;
  if (told.kind == Kind::kReleased) {
    // Until the acknowledgement the link refers to the payload.
    entry->is_released = true;
    if (entry->state != State::kPlacing) release(told.item.cell);
  } else if (entry->state == State::kWanted) {
    entry->state = State::kHeld;
    entry->is_acknowledged = true;
  }
}

void Export::on_acknowledged(std::uint64_t number) {
  const auto found = placing_.find(number);
  if (found == placing_.end()) return;
  const std::uint32_t cell = found->second;
  placing_.erase(found);
  Entry& entry = entries_.at(cell);
  entry.state = State::kHeld;
  entry.is_acknowledged = true;
  ++counts_.items;
  counts_.bytes += entry.item->descriptor().bytes;
  if (entry.is_released) release(cell);
}

Export::Entry* Export::find(const Name& item) {
  const auto found = entries_.find(item.cell);
  const bool is_here = found != entries_.end() && name_of(*found->second.item) == item;
  return is_here ? &found->second : nullptr;
}

void Export::release(std::uint32_t cell) {
  const auto found = entries_.find(cell);
  const Entry entry = std::move(found->second);
  entries_.erase(found);
  // Of what was copied, the read has ended.
  entry.item->release(entry.staging ? std::optional(memory::kByHost) : std::nullopt);
}

void Export::sweep() {
  for (auto& [source, parts] : sources_) {
    if (parts.empty() || lasts(pool_->control(), source)) continue;
    parts.clear();
    if (link_) announce(source);
  }
}

Export::Counts Export::counts() const {
  Counts found = counts_;
  found.unreleased = entries_.size();
  return found;
}

}  // namespace flowtrain::gateway
