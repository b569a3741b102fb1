// Items in memory of a device cross between hosts, on the fake driver.

#include <cstdlib>

#include "cuda/vmm.hpp"
#include "gateway/conformance.hpp"
#include "transport/fake.hpp"

using namespace flowtrain;
using namespace flowtrain::gateway::conformance;

namespace {

constexpr memory::DeviceId kDevice{0xf0f1f2f3f4f5f6f7, 0xf8f9fafbfcfdfeff};

/// Runs a test of gateways whose items lie in memory of a device.
template <class Test>
void on_device(std::uint64_t seed, bool reads_devices, Test&& test) {
  transport::FakeNetwork network({.seed = seed, .max_delay = 12, .reads_devices = reads_devices});
  Subject subject{[&](transport::Receiver& receiver) { return network.open(receiver); }};
  subject.place = {memory::Kind::kVmm, kDevice};
  subject.resources[static_cast<std::size_t>(memory::Kind::kVmm)] = &cuda::vmm();
  test(subject);
}

}  // namespace

int main() {
  for (const bool reads_devices : {false, true}) {
    on_device(1, reads_devices, [](const Subject& s) { items_cross_intact_and_once(s); });
    on_device(2, reads_devices, [](const Subject& s) { a_mirror_ends_with_its_source(s); });
    for (std::uint64_t seed = 1; seed <= 4; ++seed) {
      on_device(seed, reads_devices,
                [&](const Subject& s) { a_new_link_goes_on_where_the_last_one_ended(s, seed); });
      on_device(seed, reads_devices,
                [&](const Subject& s) { a_replaced_gateway_goes_on(s, seed); });
    }
  }
}
