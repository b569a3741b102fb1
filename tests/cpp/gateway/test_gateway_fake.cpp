// Gateways over the fake of a transport, which delays, reorders and cuts.

#include <cstdlib>

#include "gateway/breaches.hpp"
#include "gateway/conformance.hpp"
#include "transport/fake.hpp"

using namespace flowtrain;
using namespace flowtrain::gateway::conformance;

namespace {

/// Runs a test with a network of its own.
template <class Test>
void with_network(std::uint64_t seed, Test&& test) {
  transport::FakeNetwork network({.seed = seed, .max_delay = 12, .piece_bytes = 4096});
  const Subject subject{[&](transport::Receiver& receiver) { return network.open(receiver); }};
  test(subject, network);
}

}  // namespace

int main() {
  const char* const given = std::getenv("SEEDS");
  const std::uint64_t seeds = given != nullptr ? std::strtoull(given, nullptr, 10) : 6;
  with_network(1, [](const Subject& s, auto&) { items_cross_intact_and_once(s); });
  with_network(2, [](const Subject& s, auto&) { space_returns_with_the_release_of_the_reader(s); });
  with_network(2, [](const Subject& s, auto&) { a_mirror_ends_with_its_source(s); });
  with_network(2, [](const Subject& s, auto&) { a_forgotten_host_repeats_nothing(s); });
  with_network(3, [](const Subject& s, auto&) { check_breaches(s); });
  for (std::uint64_t seed = 1; seed <= seeds; ++seed) {
    with_network(seed, [&](const Subject& s, auto&) {
      a_new_link_goes_on_where_the_last_one_ended(s, seed);
    });
    with_network(seed, [&](const Subject& s, auto&) { a_replaced_gateway_goes_on(s, seed); });
  }
}
