#include "transport/grants.hpp"

#include <algorithm>
#include <string>

#include "base/error.hpp"

namespace flowtrain::transport {
namespace {

bool within(std::uint64_t offset, std::uint64_t bytes, std::uint64_t from, std::uint64_t size) {
  return offset >= from && offset - from <= size && bytes <= size - (offset - from);
}

/// Takes the same time wherever the first difference is.
bool same(const Ticket& expected, const Header& given) noexcept {
  volatile unsigned difference = 0;
  for (std::size_t i = 0; i < expected.size(); ++i) {
    difference = difference | std::to_integer<unsigned>(expected[i] ^ given[i]);
  }
  return difference == 0;
}

}  // namespace

const char* text(Reason reason) noexcept {
  switch (reason) {
    case Reason::kNone: return "no reason was given";
    case Reason::kNotAFrame: return "bytes that are no frame of this version";
    case Reason::kUnknownSession: return "unknown session, or wrong ticket";
    case Reason::kUsedSession: return "the session has had its link already";
    case Reason::kUnknownGrant: return "unknown grant";
    case Reason::kUsedGrant: return "the grant was used already";
    case Reason::kDeadGeneration: return "the generation of the grant has ended";
    case Reason::kForeignGrant: return "the grant belongs to another session";
    case Reason::kOutOfBounds: return "offset or length outside of the grant";
    case Reason::kWrongLength: return "not as many bytes as announced";
  }
  return "a reason of another version";
}

GrantTable::GrantTable(std::uint32_t max_grants) : slots_(max_grants) {
  free_.reserve(max_grants);
  for (std::uint32_t slot = max_grants; slot-- > 0;) {
    slots_[slot].grant.slot = slot;
    slots_[slot].grant.generation = 1;
    free_.push_back(slot);
  }
}

std::uint32_t GrantTable::add_region(std::byte* data, std::uint64_t bytes) {
  const auto free = std::ranges::find(regions_, nullptr, &Region::data);
  const auto number = static_cast<std::uint32_t>(free - regions_.begin());
  if (free == regions_.end()) {
    regions_.push_back({data, bytes});
  } else {
    *free = {data, bytes};
  }
  return number;
}

void GrantTable::remove_region(std::uint32_t region) {
  for (Slot& slot : slots_) {
    if (slot.state == State::kFree || slot.grant.region != region) continue;
    if (slot.state == State::kReceiving) {
      throw BadArgument("region " + std::to_string(region) + " is being written by session " +
                        std::to_string(slot.grant.session) + "; dismiss the session first");
    }
    end(slot, false);
  }
  if (region < regions_.size()) regions_[region] = {nullptr, 0};
}

void GrantTable::admit(const Session& session) {
  if (session.id == 0) throw BadArgument("session 0 stands for none; draw another number");
  if (!sessions_.try_emplace(session.id, Admitted{session.ticket, false}).second) {
    throw BadArgument("session " + std::to_string(session.id) + " is admitted already");
  }
}

void GrantTable::dismiss(std::uint64_t session) noexcept {
  sessions_.erase(session);
  for (Slot& slot : slots_) {
    if (slot.state != State::kFree && slot.grant.session == session) end(slot, false);
  }
}

std::optional<Grant> GrantTable::grant(std::uint64_t session, std::uint32_t region,
                                       std::uint64_t offset, std::uint64_t bytes) {
  if (!sessions_.contains(session)) {
    throw BadArgument("a grant for session " + std::to_string(session) +
                      ", which is not admitted or has ended");
  }
  const bool known = region < regions_.size() && regions_[region].data != nullptr;
  if (!known || !within(offset, bytes, 0, regions_[region].bytes)) {
    const std::string limit =
        known ? "has " + std::to_string(regions_[region].bytes) : "is unknown";
    throw BadArgument("a grant of " + std::to_string(bytes) + " bytes at " +
                      std::to_string(offset) + " of region " + std::to_string(region) + ", which " +
                      limit);
  }
  if (free_.empty()) return std::nullopt;
  Slot& slot = slots_[free_.back()];
  free_.pop_back();
  slot.grant = {session, slot.grant.slot, slot.grant.generation, region, offset, bytes};
  slot.state = State::kGranted;
  return slot.grant;
}

void GrantTable::end(Slot& slot, bool used) noexcept {
  slot.state = State::kFree;
  slot.was_used = used;
  ++slot.grant.generation;
  free_.push_back(slot.grant.slot);  // Never allocates: reserved for all slots.
}

Reason GrantTable::open(std::uint64_t session, const Header& ticket) noexcept {
  const auto found = sessions_.find(session);
  if (found == sessions_.end() || !same(found->second.ticket, ticket)) {
    return Reason::kUnknownSession;
  }
  if (found->second.is_open) return Reason::kUsedSession;
  found->second.is_open = true;
  return Reason::kNone;
}

GrantTable::Begun GrantTable::begin(const Frame& place) noexcept {
  if (!sessions_.contains(place.session)) return {Reason::kUnknownSession, nullptr};
  if (place.slot >= slots_.size()) return {Reason::kUnknownGrant, nullptr};
  Slot& slot = slots_[place.slot];
  const Grant& grant = slot.grant;
  if (place.generation != grant.generation) {
    const bool used = slot.was_used && place.generation + 1 == grant.generation;
    return {used ? Reason::kUsedGrant : Reason::kDeadGeneration, nullptr};
  }
  if (slot.state == State::kFree) return {Reason::kUnknownGrant, nullptr};
  if (grant.session != place.session) return {Reason::kForeignGrant, nullptr};
  if (slot.state == State::kReceiving) return {Reason::kUsedGrant, nullptr};
  if (place.region != grant.region ||
      !within(place.offset, place.bytes, grant.offset, grant.bytes)) {
    return {Reason::kOutOfBounds, nullptr};
  }
  slot.state = State::kReceiving;
  return {Reason::kNone, regions_[grant.region].data + place.offset};
}

Placement GrantTable::finish(const Frame& place) noexcept {
  Slot& slot = slots_[place.slot];
  const Placement placed{slot.grant, place.bytes, place.header};
  end(slot, true);
  return placed;
}

}  // namespace flowtrain::transport
