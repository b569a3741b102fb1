// Items in memory of a device cross between hosts, on the fake driver.

#include <unistd.h>

#include <atomic>
#include <cstdlib>

#include "cuda/context.hpp"
#include "cuda/driver.hpp"
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

/// Also of an item without bytes the slab can be released only then.
void an_empty_item_waits_for_its_stream(const Subject& s) {
  Pair pair(s);
  const auto producer = std::make_shared<channel::Producer>(
      pair.a.others, "at-b", add_classes(pair.a), channel::Producer::Credits{});
  const auto consumer = std::make_shared<channel::Consumer>(pair.b.others, "at-b");
  std::atomic<bool> passes = false;
  const auto stream = memory::StreamHandle{77};
  {
    const cuda::ContextScope scope(0);
    FLOWTRAIN_CUDA(
        LaunchHostFunc, "the test", reinterpret_cast<CUstream>(stream),
        [](void* flag) {
          while (!*static_cast<std::atomic<bool>*>(flag)) ::usleep(100);
        },
        &passes);
  }
  producer->try_lease(bytes_of(0))->publish({1, 0}, stream);
  const auto take = [&] {
    if (auto found = consumer->try_get()) found->release();
  };
  for (const Deadline soon = Deadline::in(0.1); !soon.passed(); take()) pair.progress();
  CHECK(pair.b.gateway->traffic()[0].in.items == 0);
  passes = true;
  pair.run([&] {
    take();
    return pair.a.slabs_in_use() == 0;
  });
  CHECK(pair.b.gateway->traffic()[0].in.items == 1);
}

}  // namespace

int main() {
  for (const bool reads_devices : {false, true}) {
    on_device(1, reads_devices, [](const Subject& s) { items_cross_intact_and_once(s); });
    on_device(2, reads_devices, [](const Subject& s) { a_mirror_ends_with_its_source(s); });
    on_device(3, reads_devices, an_empty_item_waits_for_its_stream);
    for (std::uint64_t seed = 1; seed <= 4; ++seed) {
      on_device(seed, reads_devices,
                [&](const Subject& s) { a_new_link_goes_on_where_the_last_one_ended(s, seed); });
      on_device(seed, reads_devices,
                [&](const Subject& s) { a_replaced_gateway_goes_on(s, seed); });
    }
  }
}
