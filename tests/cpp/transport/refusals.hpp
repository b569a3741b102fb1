#pragma once

#include <limits>

#include "transport/host.hpp"

/// Wrong frames and strangers, which every transport must refuse.
namespace flowtrain::transport::conformance {

inline constexpr std::uint64_t kGranted = 1000;

/// A host that has admitted session 7 and granted it kGranted bytes at an offset, and a raw peer.
class Attacked {
 public:
  explicit Attacked(const Subject& s) : host(s), raw(s.connect_raw(host.transport->address())) {
    host.transport->admit(session_of(7));
    host.transport->admit(session_of(9));
    granted = host.grant(7, kGranted, kGranted);
    foreign = host.grant(9, 0, kGranted);
  }

  Frame hello() const {
    Frame frame;
    frame.session = 7;
    const Ticket ticket = session_of(7).ticket;
    std::copy(ticket.begin(), ticket.end(), frame.header.begin());
    return frame;
  }
  Frame place(std::uint64_t number = 1) const {
    Frame frame;
    frame.kind = FrameKind::kPlace;
    frame.session = 7;
    frame.number = number;
    frame.slot = granted.slot;
    frame.generation = granted.generation;
    frame.region = granted.region;
    frame.offset = granted.offset;
    frame.bytes = kGranted;
    return frame;
  }
  /// The last thing sent was refused, for this reason, and the session has ended if there was one.
  void check_refused(Reason reason) {
    run({&host}, [&] { return !host.refused.empty(); });
    settle({&host});
    CHECK(host.refused.size() == 1);
    if (host.refused[0].reason != reason) {
      std::fprintf(stderr, "refused as '%s', expected '%s'\n", text(host.refused[0].reason),
                   text(reason));
    }
    CHECK(host.refused[0].reason == reason && !host.refused[0].peer.empty());
    CHECK(host.closed.empty());
    if (host.refused[0].session == 7) {
      CHECK_THROWS(host.transport->grant(7, host.region, 0, 1), BadArgument);
    }
  }

  Host host;
  Grant granted{};
  Grant foreign{};
  std::unique_ptr<Raw> raw;
};

inline void wrong_placements_are_refused(const Subject& s) {
  constexpr std::uint64_t kMax = std::numeric_limits<std::uint64_t>::max();
  struct Case {
    Reason reason;
    std::function<void(Frame&, const Attacked&)> change;
  };
  const std::vector<Case> cases{
      {Reason::kUnknownGrant, [](Frame& f, const Attacked&) { f.slot = 1 << 30; }},
      {Reason::kUnknownGrant, [](Frame& f, const Attacked&) { f.slot += 17; }},
      {Reason::kDeadGeneration, [](Frame& f, const Attacked&) { f.generation -= 1; }},
      {Reason::kDeadGeneration, [](Frame& f, const Attacked&) { f.generation += 1; }},
      {Reason::kForeignGrant,
       [](Frame& f, const Attacked& a) {
         f.slot = a.foreign.slot;
         f.generation = a.foreign.generation;
         f.offset = a.foreign.offset;
       }},
      {Reason::kOutOfBounds, [](Frame& f, const Attacked&) { f.region += 1; }},
      {Reason::kOutOfBounds, [](Frame& f, const Attacked&) { f.offset -= 1; }},
      {Reason::kOutOfBounds, [](Frame& f, const Attacked&) { f.offset += 1; }},
      {Reason::kOutOfBounds, [](Frame& f, const Attacked&) { f.offset = kMax - 10; }},
      {Reason::kOutOfBounds, [](Frame& f, const Attacked&) { f.bytes = kMax; }},
      {Reason::kOutOfBounds,
       [](Frame& f, const Attacked&) {
         f.bytes += 1;  // The grant is followed by memory of the same region.
       }},
      {Reason::kUnknownSession, [](Frame& f, const Attacked&) { f.session = 9; }},
      {Reason::kNotAFrame, [](Frame& f, const Attacked&) { f.kind = FrameKind{77}; }},
      {Reason::kNotAFrame, [](Frame& f, const Attacked&) { f.kind = FrameKind::kHello; }},
      {Reason::kNotAFrame, [](Frame& f, const Attacked&) { f.magic += 1; }},
  };
  for (const Case& each : cases) {
    Attacked attacked(s);
    Frame frame = attacked.place();
    each.change(frame, attacked);
    attacked.raw->send(attacked.hello(), {});
    attacked.raw->send(frame, Bytes(std::min<std::uint64_t>(frame.bytes, 2 * kGranted)));
    attacked.check_refused(each.reason);
    CHECK(attacked.host.is_untouched() && attacked.host.placed.empty());
  }
}

inline void a_grant_is_used_once(const Subject& s) {
  Attacked attacked(s);
  const Bytes first = pattern(1, kGranted);
  attacked.raw->send(attacked.hello(), {});
  attacked.raw->send(attacked.place(), first);
  run({&attacked.host}, [&] { return attacked.host.placed.size() == 1; });
  attacked.raw->send(attacked.place(2), pattern(2, kGranted));
  attacked.check_refused(Reason::kUsedGrant);
  CHECK(attacked.host.placed.size() == 1 && holds(attacked.host, kGranted, first));
}

inline void more_bytes_than_announced_are_refused(const Subject& s) {
  Attacked attacked(s);
  attacked.raw->send(attacked.hello(), {});
  attacked.raw->send(attacked.place(), Bytes(kGranted + 500));
  run({&attacked.host}, [&] { return !attacked.host.refused.empty(); });
  CHECK(std::all_of(attacked.host.memory.begin() + 2 * kGranted, attacked.host.memory.end(),
                    [](std::byte each) { return each == std::byte{0xee}; }));
}

inline void strangers_are_refused(const Subject& s) {
  const std::vector<std::pair<Reason, std::function<void(Frame&, const Attacked&)>>> cases{
      {Reason::kUnknownSession, [](Frame& f, const Attacked&) { f.session = 8; }},
      {Reason::kUnknownSession, [](Frame& f, const Attacked&) { f.session = 0; }},
      {Reason::kUnknownSession, [](Frame& f, const Attacked&) { f.header[31] = std::byte{1}; }},
      {Reason::kUnknownSession, [](Frame& f, const Attacked& a) { f = a.place(); }},
      {Reason::kUnknownSession, [](Frame& f, const Attacked&) { f.kind = FrameKind::kMessage; }},
      {Reason::kNotAFrame, [](Frame& f, const Attacked&) { f.magic = 0x20544547; }},  // "GET "
  };
  for (const auto& [reason, change] : cases) {
    Attacked attacked(s);
    Frame frame = attacked.hello();
    change(frame, attacked);
    attacked.raw->send(frame, {});
    attacked.check_refused(reason);
    CHECK(attacked.host.refused[0].session == 0 && attacked.host.is_untouched());
    // It does not cost the session its link.
    const auto again = s.connect_raw(attacked.host.transport->address());
    again->send(attacked.hello(), {});
    again->send(attacked.place(), pattern(3, kGranted));
    run({&attacked.host}, [&] { return attacked.host.placed.size() == 1; });
  }
}

inline void a_session_has_one_link(const Subject& s) {
  Attacked attacked(s);
  attacked.raw->send(attacked.hello(), {});
  Frame message = attacked.hello();
  message.kind = FrameKind::kMessage;
  attacked.raw->send(message, {});
  run({&attacked.host}, [&] { return attacked.host.messages.size() == 1; });
  const auto second = s.connect_raw(attacked.host.transport->address());
  second->send(attacked.hello(), {});
  attacked.check_refused(Reason::kUsedSession);
  attacked.raw->send(attacked.place(), pattern(3, kGranted));
  run({&attacked.host}, [&] { return attacked.host.placed.size() == 1; });
}

inline void check_refusals(const Subject& s) {
  for (const auto each :
       {wrong_placements_are_refused, a_grant_is_used_once, more_bytes_than_announced_are_refused,
        strangers_are_refused, a_session_has_one_link}) {
    each(s);
  }
}

}  // namespace flowtrain::transport::conformance
