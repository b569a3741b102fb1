#pragma once

#include <numeric>

#include "transport/host.hpp"

/// Tests that every transport passes, with peers that keep the rules; others are in refusals.hpp.
namespace flowtrain::transport::conformance {

inline void payloads_arrive_whole_and_nowhere_else(const Subject& s) {
  Pair pair(s, 8 << 20);
  std::vector<Bytes> payloads;
  std::vector<std::uint64_t> offsets;
  std::uint64_t at = 1;
  for (const std::uint64_t bytes : {8UL, 0UL, 1UL, 65UL, 4096UL, 1048579UL, 3UL << 20}) {
    payloads.push_back(pattern(at, bytes));
    offsets.push_back(at);
    at += bytes + 1;
  }
  for (std::size_t i = 0; i < payloads.size(); ++i) {
    // A grant may be larger than what comes.
    const Grant grant = pair.b.grant(7, offsets[i], payloads[i].size() + (i % 2));
    const auto number =
        pair.link->place(grant, header_of(i), payloads[i].data(), payloads[i].size());
    CHECK(number == i + 1);
  }
  CHECK(pair.link->pending() == payloads.size());
  run({&pair.a, &pair.b}, [&] { return pair.a.acknowledged.size() == payloads.size(); });
  CHECK(pair.link->pending() == 0 && pair.link->error().empty() && pair.link->stalled_ns() == 0);
  std::ranges::sort(pair.a.acknowledged);
  for (std::size_t i = 0; i < payloads.size(); ++i) CHECK(pair.a.acknowledged[i] == i + 1);
  CHECK(pair.b.placed.size() == payloads.size());
  for (const Placement& placed : pair.b.placed) {
    std::uint64_t i = 0;
    std::memcpy(&i, placed.header.data(), sizeof(i));
    CHECK(placed.bytes == payloads[i].size() && placed.grant.offset == offsets[i]);
    CHECK(placed.grant.session == 7 && holds(pair.b, offsets[i], payloads[i]));
    CHECK(pair.b.memory[offsets[i] + payloads[i].size()] == std::byte{0xee});
  }
  CHECK(pair.b.memory[0] == std::byte{0xee});
}

inline void messages_arrive(const Subject& s) {
  Pair pair(s);
  CHECK(pair.link->send(header_of(1)) && pair.link->send(header_of(2)));
  run({&pair.a, &pair.b}, [&] { return pair.b.messages.size() == 2; });
  std::ranges::sort(pair.b.messages);
  CHECK(pair.b.messages[0] == header_of(1) && pair.b.messages[1] == header_of(2));
  CHECK(flush(*pair.a.transport, *pair.link, Deadline::in(30)));
}

/// Each placement is the answer to the one before it: what `on_placed` calls must work.
inline void both_directions_work_at_once(const Subject& s) {
  Host a(s), b(s);
  a.transport->admit(session_of(1));
  b.transport->admit(session_of(2));
  const auto to_a = b.transport->connect(a.transport->address(), session_of(1));
  const auto to_b = a.transport->connect(b.transport->address(), session_of(2));
  const Bytes payload = pattern(3, 100);
  std::size_t rounds = 0;
  const auto put = [&](Host& to, std::uint64_t session, Link& link) {
    CHECK(link.place(to.grant(session, 0, 100), {}, payload.data(), payload.size()));
  };
  a.when_placed = [&](const Placement&) { put(b, 2, *to_b); };
  b.when_placed = [&](const Placement&) {
    if (++rounds < 50) put(a, 1, *to_a);
  };
  put(b, 2, *to_b);
  run({&a, &b}, [&] { return rounds == 50 && a.acknowledged.size() == 50; });
  CHECK(b.acknowledged.size() == 49 && holds(a, 0, payload) && holds(b, 0, payload));
}

/// A wait for progress_fd sleeps until something comes, and then there is something to do.
inline void progress_is_driven_by_events(const Subject& s) {
  Pair pair(s);
  CHECK(pair.link->send(header_of(1)));
  run({&pair.a, &pair.b}, [&] { return pair.b.messages.size() == 1; });
  run({&pair.a, &pair.b}, [&] { return !pair.b.transport->wait(Deadline::in(0.01)); });
  CHECK(pair.link->send(header_of(2)));
  pair.a.transport->progress();
  const Deadline deadline = Deadline::in(30);
  while (pair.b.messages.size() < 2 && pair.b.transport->wait(deadline)) {
  }
  CHECK(pair.b.messages.size() == 2);
}

/// The receiver does not run for a while: told, bounded, and no error.
inline void a_stopped_receiver_is_a_stall(const Subject& s) {
  constexpr std::uint64_t kBytes = 64 << 10;
  Pair pair(s, kBytes);
  const Bytes payload = pattern(5, kBytes);
  CHECK(pair.link->send(header_of(0)));
  run({&pair.a, &pair.b}, [&] { return pair.b.messages.size() == 1; });
  std::size_t placed = 0;
  while (placed <= Link::kMaxPending) {
    const Grant grant = pair.b.grant(7, 0, kBytes);
    if (!pair.link->place(grant, header_of(placed), payload.data(), kBytes)) break;
    pair.a.transport->progress();
    ++placed;
  }
  CHECK(placed == Link::kMaxPending && pair.link->pending() == placed);
  CHECK(!pair.link->send(header_of(1)));
  run({&pair.a}, [&] { return pair.link->stalled_ns() > 50'000'000; });
  CHECK(pair.link->error().empty());
  run({&pair.a, &pair.b}, [&] { return pair.a.acknowledged.size() == placed; });
  CHECK(pair.b.placed.size() == placed && holds(pair.b, 0, payload));
  CHECK(pair.link->stalled_ns() == 0 && pair.a.closed.empty() && pair.b.closed.empty());
}

/// Large enough that no buffer of a kernel takes all of it.
inline constexpr std::uint64_t kLarge = 48 << 20;

/// Progresses until a large payload has begun to arrive.
inline Bytes begin_large(Pair& pair) {
  Bytes payload = pattern(9, kLarge);
  CHECK(pair.link->place(pair.b.grant(7, 0, kLarge), {}, payload.data(), kLarge));
  run({&pair.a, &pair.b}, [&] { return pair.b.memory[0] != std::byte{0xee}; });
  CHECK(pair.b.placed.empty() && pair.link->pending() == 1);
  return payload;
}

/// The memory of a session that has ended serves the next one.
inline void another_session_works(const Subject& s, Host& b) {
  Host c(s);
  const std::size_t before = b.placed.size();
  b.transport->admit(session_of(8));
  const auto link = c.transport->connect(b.transport->address(), session_of(8));
  const Bytes payload = pattern(4, 5000);
  CHECK(link->place(b.grant(8, 0, 5000), {}, payload.data(), 5000));
  run({&b, &c}, [&] { return !c.acknowledged.empty(); });
  CHECK(b.placed.size() == before + 1 && holds(b, 0, payload));
}

inline void a_sender_that_dies_within_a_payload_publishes_nothing(const Subject& s) {
  Pair pair(s, kLarge);
  const Bytes payload = begin_large(pair);
  pair.link.reset();
  pair.a.transport.reset();
  run({&pair.b}, [&] { return !pair.b.closed.empty(); });
  CHECK(pair.b.closed.size() == 1 && pair.b.placed.empty() && pair.b.refused.empty());
  CHECK_THROWS(pair.b.transport->grant(7, pair.b.region, 0, 1), BadArgument);
  another_session_works(s, pair.b);
}

inline void a_receiver_that_dies_is_an_error_of_the_link(const Subject& s) {
  Pair pair(s, kLarge);
  const std::string address = pair.b.transport->address();
  const Bytes payload = begin_large(pair);
  pair.b.transport.reset();
  run({&pair.a}, [&] { return !pair.link->error().empty(); });
  CHECK(names(pair.link->error(), address));
  CHECK(pair.a.closed == std::vector{pair.link->error()} && pair.link->pending() == 0);
  CHECK(!pair.link->place({}, {}, nullptr, 0) && !pair.link->send({}));
  CHECK(!flush(*pair.a.transport, *pair.link, Deadline::in(30)));
}

/// At any moment of their connection.
inline void a_transport_may_end_while_peers_connect(const Subject& s) {
  Host a(s);
  for (int i = 0; i < 24; ++i) {
    auto b = std::make_unique<Host>(s, 1 << 20);
    std::vector<std::shared_ptr<Link>> links;
    for (std::uint64_t session = 1; session <= 8; ++session) {
      b->transport->admit(session_of(session));
      links.push_back(a.transport->connect(b->transport->address(), session_of(session)));
    }
    for (int left = i % 8; left > 0; --left) {
      a.transport->progress();
      b->transport->progress();
    }
    b.reset();
    for (const auto& link : links) {
      run({&a}, [&] { return !link->error().empty(); });
    }
  }
}

inline void an_aborted_link_leaves_its_payload_unread(const Subject& s) {
  Pair pair(s, kLarge);
  Bytes payload = begin_large(pair);
  pair.link->abort();
  std::ranges::fill(payload, std::byte{0xfd});
  CHECK(!pair.link->error().empty() && pair.link->pending() == 0 && !pair.link->send({}));
  run({&pair.a, &pair.b}, [&] { return !pair.b.closed.empty(); });
  CHECK(pair.b.placed.empty() && pair.a.acknowledged.empty() && pair.a.closed.empty());
  CHECK(std::ranges::find(pair.b.memory, std::byte{0xfd}) == pair.b.memory.end());
  another_session_works(s, pair.b);
}

inline void a_dismissed_session_writes_nothing_more(const Subject& s) {
  Pair pair(s, kLarge);
  const Bytes payload = begin_large(pair);
  pair.b.transport->dismiss(7);
  std::ranges::fill(pair.b.memory, std::byte{0xee});
  run({&pair.a, &pair.b}, [&] { return !pair.link->error().empty(); });
  settle({&pair.a, &pair.b});
  CHECK(pair.b.is_untouched() && pair.b.placed.empty() && pair.b.closed.empty());
  another_session_works(s, pair.b);
}

/// The number of a removed region serves the next one, and its grants stay refused.
inline void a_removed_region_is_not_written(const Subject& s) {
  Pair pair(s);
  const Grant grant = pair.b.grant(7, 0, 8);
  const Bytes payload = pattern(1, 8);
  pair.b.transport->remove_region(pair.b.region);
  CHECK_THROWS(pair.b.grant(7, 0, 8), BadArgument);
  Bytes next(8, std::byte{0xee});
  CHECK(pair.b.transport->add_region(next.data(), next.size()) == pair.b.region);
  CHECK(pair.link->place(grant, {}, payload.data(), 8));
  run({&pair.a, &pair.b}, [&] { return !pair.link->error().empty(); });
  CHECK(pair.b.refused.size() == 1 && pair.b.refused[0].reason == Reason::kDeadGeneration);
  CHECK(pair.link->error().find(text(Reason::kDeadGeneration)) != std::string::npos);
  CHECK(pair.b.is_untouched() && next == Bytes(8, std::byte{0xee}));
}

inline void a_region_that_is_being_written_stays(const Subject& s) {
  Pair pair(s, kLarge);
  const Bytes payload = begin_large(pair);
  CHECK_THROWS(pair.b.transport->remove_region(pair.b.region), BadArgument);
  run({&pair.a, &pair.b}, [&] { return pair.a.acknowledged.size() == 1; });
  CHECK(holds(pair.b, 0, payload));
}

inline void what_the_caller_gets_wrong_throws(const Subject& s) {
  Host host(s);
  const auto grant = [&](std::uint64_t session, std::uint32_t region, std::uint64_t offset,
                         std::uint64_t bytes) {
    CHECK_THROWS(host.transport->grant(session, region, offset, bytes), BadArgument);
  };
  grant(7, host.region, 0, 1);
  host.transport->admit(session_of(7));
  CHECK_THROWS(host.transport->admit(session_of(7)), BadArgument);
  CHECK_THROWS(host.transport->admit(session_of(0)), BadArgument);
  grant(7, host.region + 1, 0, 1);
  grant(7, host.region, 1, host.memory.size());
  grant(7, host.region, ~std::uint64_t{0}, 2);
  CHECK_THROWS(host.transport->connect("nowhere", session_of(7)), BadArgument);
}

inline void check(const Subject& s) {
  for (const auto each :
       {payloads_arrive_whole_and_nowhere_else, messages_arrive, both_directions_work_at_once,
        progress_is_driven_by_events, a_stopped_receiver_is_a_stall,
        a_sender_that_dies_within_a_payload_publishes_nothing,
        a_receiver_that_dies_is_an_error_of_the_link, a_transport_may_end_while_peers_connect,
        an_aborted_link_leaves_its_payload_unread, a_dismissed_session_writes_nothing_more,
        a_removed_region_is_not_written, a_region_that_is_being_written_stays,
        what_the_caller_gets_wrong_throws}) {
    each(s);
  }
}

}  // namespace flowtrain::transport::conformance
