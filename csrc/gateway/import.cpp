#include "gateway/import.hpp"

#include <algorithm>
#include <string>
#include <utility>

#include "channel/layout/dtype.hpp"

namespace flowtrain::gateway {
namespace {

using channel::Layout;

std::string name_of(const Name& item) {
  return "item " + std::to_string(item.cell) + "." + std::to_string(item.generation);
}

/// The layout of an item that has arrived.
Layout layout_of(const ItemHeader& header, std::uint64_t bytes) {
  Layout layout{header.dtype, header.ndim, {}, bytes};
  std::copy(std::begin(header.shape), std::end(header.shape), layout.shape.begin());
  if (header.dtype >= channel::kDtypes.size() || header.ndim > channel::kMaxDims ||
      channel::array_bytes(header.dtype, {header.shape, header.ndim}) != bytes) {
    throw BrokenRule(name_of(header.item) + " has " + std::to_string(bytes) +
                     " bytes, which its dtype and shape do not make");
  }
  return layout;
}

}  // namespace

Import::Import(channel::Pool& pool, transport::Transport& transport, SegmentMaker& maker,
               const std::vector<bool>& leads_away, std::uint32_t max_cells)
    : pool_(pool),
      transport_(transport),
      maker_(maker),
      leads_away_(leads_away),
      max_cells_(max_cells) {}

void Import::begin(std::uint64_t session, Since since) {
  session_ = session;
  // Another process does not know which sources have ended. Readers keep what they have.
  if (since != Since::kSame) sources_.clear();
}

void Import::end() {
  link_.reset();
  session_ = 0;
  gone_.clear();
  waiting_.clear();
  answers_.clear();
  for (auto& [cell, entry] : entries_) entry.is_answered = true;
  std::erase_if(entries_, [](const auto& each) {
    return each.second.state == State::kWaiting || each.second.state == State::kGranted;
  });
}

void Import::on_source(const SourcePart& part) {
  if (gone_.contains(part.source)) return;
  if (part.num_parts == 0 || part.num_parts > channel::kMaxClasses || part.part >= part.num_parts ||
      part.source == 0) {
    throw BrokenRule("part " + std::to_string(part.part) + " of " + std::to_string(part.num_parts) +
                     " of segment " + std::to_string(part.source));
  }
  Source& source = sources_[part.source];
  if (source.parts.empty()) source.parts.resize(part.num_parts);
  SourcePart& known = source.parts[std::min<std::size_t>(part.part, source.parts.size() - 1)];
  const bool is_known = known.source == part.source;
  if (part.num_parts != source.parts.size() || (is_known && header_of(known) != header_of(part))) {
    throw BrokenRule("segment " + std::to_string(part.source) + " was described before otherwise");
  }
  known = part;
  if (source.mirror || !std::ranges::all_of(source.parts, [&](const SourcePart& each) {
        return each.source == part.source;
      })) {
    return;
  }
  try {
    source.mirror = std::make_unique<Mirror>(pool_, transport_, maker_, source.parts);
  } catch (const BadArgument& error) {
    throw BrokenRule("segment " + std::to_string(part.source) + ": " + error.what());
  }
}

void Import::on_gone(const Gone& gone) {
  const bool is_used = std::ranges::any_of(entries_, [&](const auto& each) {
    const Entry& entry = each.second;
    return entry.source == gone.source &&
           (entry.state == State::kWaiting || entry.state == State::kGranted);
  });
  if (is_used) {
    throw BrokenRule("segment " + std::to_string(gone.source) +
                     " has ended, with items on the way");
  }
  gone_.insert(gone.source);
  sources_.erase(gone.source);
}

void Import::on_want(const Want& want) {
  const auto& [cell, generation] = want.item;
  if (cell >= max_cells_ || want.ring >= leads_away_.size() || leads_away_[want.ring]) {
    throw BrokenRule(name_of(want.item) + " of " + std::to_string(max_cells_) + " cells for ring " +
                     std::to_string(want.ring) + ", which has no reader here");
  }
  const auto [found, is_new] = entries_.try_emplace(cell, Entry{.generation = generation});
  Entry& entry = found->second;
  if (!is_new) {
    // Generations may wrap around.
    const auto newer = static_cast<std::int32_t>(generation - entry.generation);
    if (newer < 0) return;
    if (newer == 0) return answer(cell, entry);
    if (entry.state != State::kHeld && entry.state != State::kReleased) {
      throw BrokenRule(name_of(want.item) + " while the peer wants " +
                       name_of({cell, entry.generation}));
    }
    if (entry.state == State::kHeld) std::erase(held_, cell);
    entry = Entry{.generation = generation, .is_answered = entry.is_answered};
  }
  entry.ring = want.ring;
  entry.source = want.source;
  entry.bytes = want.bytes;
  waiting_.push_back(cell);
}

void Import::on_placed(const transport::Placement& placement) {
  const auto header = message_of<ItemHeader>(placement.header);
  const auto found = entries_.find(header.item.cell);
  if (header.kind != Kind::kItem || found == entries_.end() ||
      found->second.generation != header.item.generation ||
      found->second.state != State::kGranted || found->second.grant.slot != placement.grant.slot ||
      found->second.grant.generation != placement.grant.generation) {
    throw BrokenRule(name_of(header.item) + " came by a grant that is not for it");
  }
  Entry& entry = found->second;
  const auto lease = std::exchange(entry.lease, nullptr);
  lease->shrink(layout_of(header, placement.bytes));
  entry.local_cell = lease->leased().cell;
  entry.local_generation = lockfree::generation_of(lease->leased().word);
  lease->publish({header.key_low, header.key_high});
  entry.state = State::kHeld;
  held_.push_back(header.item.cell);
  ++counts_.items;
  counts_.bytes += placement.bytes;
}

bool Import::progress() {
  bool did = find_released();
  if (session_ != 0) did |= grant_waiting();
  return (link_ && send()) || did;
}

bool Import::find_released() {
  return 0 < std::erase_if(held_, [&](std::uint32_t cell) {
           Entry& entry = entries_.at(cell);
           const auto word = pool_.control()
                                 .word(entry.local_cell)
                                 .load(std::memory_order_acquire);  // sync: cell.word
           if (lockfree::generation_of(word) == entry.local_generation) return false;
           entry.state = State::kReleased;
           answer(cell, entry);
           return true;
         });
}

bool Import::grant_waiting() {
  return 0 < std::erase_if(waiting_, [&](std::uint32_t cell) {
           Entry& entry = entries_.at(cell);
           if (!try_grant(entry)) return false;
           answer(cell, entry);
           return true;
         });
}

bool Import::try_grant(Entry& entry) {
  const auto source = sources_.find(entry.source);
  // After the acknowledgement the peer releases the item if this process is replaced, so another
  // handle must have mapped the mirror first.
  if (source == sources_.end() || !source->second.mirror || !source->second.mirror->is_ready()) {
    return false;
  }
  // Checked before the lease: releasing a lease wakes everyone who waits for space, this gateway
  // included.
  if (!transport_.can_grant()) return false;
  Mirror& mirror = *source->second.mirror;
  std::shared_ptr<channel::Lease> lease;
  try {
    lease = mirror.try_lease(entry.ring, entry.bytes);
  } catch (const BadArgument& error) {
    throw BrokenRule("an item of " + std::to_string(entry.bytes) + " bytes: " + error.what());
  }
  if (!lease) return false;
  const auto grant = mirror.grant(session_, *lease);
  if (!grant) return false;
  entry.grant = *grant;
  entry.lease = std::move(lease);
  entry.state = State::kGranted;
  return true;
}

void Import::answer(std::uint32_t cell, Entry& entry) {
  if (session_ == 0 || !std::exchange(entry.is_answered, false)) return;
  answers_.push_back(cell);
}

bool Import::send() {
  bool did = false;
  for (; !answers_.empty(); answers_.pop_front()) {
    const std::uint32_t cell = answers_.front();
    Entry& entry = entries_.at(cell);
    const Name item{cell, entry.generation};
    bool is_sent = true;
    if (entry.state == State::kGranted) {
      const transport::Grant& grant = entry.grant;
      is_sent = link_->send(header_of(Granted{.slot = grant.slot,
                                              .item = item,
                                              .generation = grant.generation,
                                              .region = grant.region,
                                              .offset = grant.offset,
                                              .bytes = grant.bytes}));
    } else if (entry.state != State::kWaiting) {
      const Kind kind = entry.state == State::kHeld ? Kind::kHeld : Kind::kReleased;
      is_sent = link_->send(header_of(Told{.kind = kind, .item = item}));
    }
    if (!is_sent) break;
    entry.is_answered = true;
    did = true;
  }
  return did;
}

Import::Counts Import::counts() const {
  Counts found = counts_;
  found.unreleased = held_.size();
  found.waiting = waiting_.size();
  found.mirrors = sources_.size();
  return found;
}

}  // namespace flowtrain::gateway
