// Gateways over TCP.

#include <string>

#include "base/error.hpp"
#include "gateway/breaches.hpp"
#include "gateway/conformance.hpp"
#include "transport/sockets/sockets.hpp"

using namespace flowtrain;
using namespace flowtrain::gateway;
using namespace flowtrain::gateway::conformance;

namespace {

Subject subject_with(std::uint32_t max_grants) {
  return {[max_grants](transport::Receiver& receiver) {
    return transport::open_sockets("127.0.0.1", receiver, max_grants);
  }};
}

/// An item for which the transport has no grant left waits, and so does the thread.
void a_lack_of_grants_is_a_wait() {
  const Subject subject = subject_with(2);
  Peculiar peer(subject);
  peer.announce();
  const Granted first = peer.granted({1, 1});
  peer.granted({2, 1});
  peer.send(Want{.ring = 0, .source = Peculiar::kSource, .item = {3, 1}, .bytes = 100});
  peer.run([&] { return peer.host.gateway->traffic()[0].in.waiting == 1; });
  int waits = 0;
  for (const Deadline deadline = Deadline::in(0.3); !deadline.passed(); ++waits) {
    peer.host.gateway->wait(Deadline::in(0.1));
  }
  CHECK(waits < 20);
  peer.place(first, header_for({1, 1}, 100), 100);
  peer.run([&] { return peer.messages.size() == 3; });
  CHECK(message_of<Granted>(peer.messages[2]).item == (Name{3, 1}));
}

/// The pool has no room for a mirror, which a thread makes: the gateway throws PoolSpace.
void a_mirror_without_room_ends_the_gateway() {
  const Subject subject = subject_with(2);
  Peculiar peer(subject);
  peer.send(SourcePart{.source = Peculiar::kSource,
                       .part = 0,
                       .num_parts = 1,
                       .slab_bytes = 128,
                       .count = 1000,
                       .bytes = 128000});
  peer.send(Want{.ring = 0, .source = Peculiar::kSource, .item = {1, 1}, .bytes = 100});
  try {
    peer.run([] { return false; });
  } catch (const PoolSpace& error) {
    CHECK(std::string(error.what()).find("a segment of 1000 slabs") != std::string::npos);
  }
}

}  // namespace

int main() {
  const Subject subject = subject_with(4096);
  check(subject);
  check_breaches(subject);
  a_lack_of_grants_is_a_wait();
  a_mirror_without_room_ends_the_gateway();
  for (const std::uint64_t seed : {1, 2, 3, 4}) {
    a_new_link_goes_on_where_the_last_one_ended(subject, seed);
    a_replaced_gateway_goes_on(subject, seed);
  }
}
