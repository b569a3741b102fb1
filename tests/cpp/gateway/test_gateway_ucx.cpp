// Gateways over UCX.

#include <cstdio>
#include <cstdlib>

#include "base/error.hpp"
#include "gateway/conformance.hpp"
#include "transport/ucx/ucx.hpp"

using namespace flowtrain;
using namespace flowtrain::gateway::conformance;

int main() {
  ::setenv("UCX_LOG_LEVEL", "fatal", 1);  // It tells of each link that ends.
  transport::UcxOptions options;
  if (const char* const path = std::getenv("FLOWTRAIN_TEST_UCX")) options.search.path = path;
  try {
    transport::ucx::open_library(options.search);
  } catch (const UcxError& error) {
    std::fprintf(stderr, "skipped: %s\n", error.what());
    return 77;
  }
  const Subject subject{[&](transport::Receiver& receiver) {
    return transport::open_ucx("127.0.0.1", receiver, options);
  }};
  check(subject);
  for (const std::uint64_t seed : {1, 2, 3, 4}) {
    a_new_link_goes_on_where_the_last_one_ended(subject, seed);
    a_replaced_gateway_goes_on(subject, seed);
  }
}
