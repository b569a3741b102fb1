// The fake of a transport, and what only a fake can show: deaths and cuts at any moment.

#include "transport/conformance.hpp"
#include "transport/fake.hpp"
#include "transport/refusals.hpp"

using namespace flowtrain::transport;
using namespace flowtrain::transport::conformance;

namespace {

class RawPeer final : public Raw {
 public:
  explicit RawPeer(std::unique_ptr<FakeNetwork::Raw> raw) : raw_(std::move(raw)) {}
  void send(const Frame& frame, const Bytes& payload) override {
    raw_->send(frame, payload.data(), payload.size());
  }

 private:
  std::unique_ptr<FakeNetwork::Raw> raw_;
};

Subject subject_of(FakeNetwork& network) {
  return {[&](Receiver& receiver) { return network.open(receiver); },
          [&](const std::string& address) {
            return std::make_unique<RawPeer>(network.connect_raw(address));
          }};
}

FakeNetwork network_of(std::uint64_t seed) {
  return FakeNetwork({.seed = seed, .max_delay = 20, .piece_bytes = 1 << 16});
}

/// Acknowledgements of ten placements, in the order of their arrival.
std::vector<std::uint64_t> order_of(std::uint64_t seed) {
  FakeNetwork network = network_of(seed);
  Pair pair(subject_of(network));
  const Bytes payload = pattern(1, 10);
  for (std::uint64_t i = 0; i < 10; ++i) {
    CHECK(pair.link->place(pair.b.grant(7, 10 * i, 10), {}, payload.data(), 10));
  }
  run({&pair.a, &pair.b}, [&] { return pair.link->pending() == 0; });
  return pair.a.acknowledged;
}

void the_seed_alone_decides_the_order() {
  CHECK(order_of(1) == order_of(1));
  CHECK(order_of(1) != order_of(2));
  CHECK(!std::ranges::is_sorted(order_of(1)));
}

/// A cut is silent until one side aborts.
void a_cut_is_a_stall_until_somebody_aborts() {
  FakeNetwork network = network_of(3);
  Pair pair(subject_of(network), kLarge);
  const Bytes payload = begin_large(pair);
  network.cut(pair.a.transport->address(), pair.b.transport->address());
  settle({&pair.a, &pair.b});
  CHECK(pair.link->error().empty() && pair.link->stalled_ns() > 0 && pair.b.placed.empty());
  pair.link->abort();
  settle({&pair.a, &pair.b});
  CHECK(pair.b.closed.empty());
  pair.b.transport->dismiss(7);
  another_session_works(subject_of(network), pair.b);
}

/// Killed at any moment: everything that was acknowledged was placed, and nothing twice.
void a_kill_at_any_moment_loses_nothing_acknowledged() {
  for (std::uint64_t moment = 1; moment < 60; ++moment) {
    FakeNetwork network = network_of(moment);
    Pair pair(subject_of(network), 1 << 20);
    const Bytes payload = pattern(moment, 1 << 18);
    for (std::uint64_t i = 0; i < 4; ++i) {
      CHECK(pair.link->place(pair.b.grant(7, i << 18, 1 << 18), header_of(i), payload.data(),
                             payload.size()));
    }
    for (std::uint64_t i = 0; i < moment; ++i) {
      pair.a.transport->progress();
      pair.b.transport->progress();
    }
    const bool kills_sender = moment % 2 == 0;
    Host& other = kills_sender ? pair.b : pair.a;
    network.kill((kills_sender ? pair.a : pair.b).transport->address());
    run({&other}, [&] { return !other.closed.empty(); });
    CHECK(other.closed.size() == 1 && pair.b.placed.size() >= pair.a.acknowledged.size());
    for (const Placement& placed : pair.b.placed)
      CHECK(holds(pair.b, placed.grant.offset, payload));
  }
}

}  // namespace

int main() {
  for (const std::uint64_t seed : {1, 2, 3}) {
    FakeNetwork network = network_of(seed);
    check(subject_of(network));
    check_refusals(subject_of(network));
  }
  the_seed_alone_decides_the_order();
  a_cut_is_a_stall_until_somebody_aborts();
  a_kill_at_any_moment_loses_nothing_acknowledged();
}
