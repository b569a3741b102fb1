// Gateways over TCP.

#include "gateway/breaches.hpp"
#include "gateway/conformance.hpp"
#include "transport/sockets/sockets.hpp"

using namespace flowtrain;
using namespace flowtrain::gateway::conformance;

int main() {
  const Subject subject{
      [](transport::Receiver& receiver) { return transport::open_sockets("127.0.0.1", receiver); }};
  check(subject);
  check_breaches(subject);
  for (const std::uint64_t seed : {1, 2, 3, 4}) {
    a_new_link_goes_on_where_the_last_one_ended(subject, seed);
    a_replaced_gateway_goes_on(subject, seed);
  }
}
