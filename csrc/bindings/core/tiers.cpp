#include "bindings/core/tiers.hpp"

#include <algorithm>

#include "base/error.hpp"
#include "memory/fake.hpp"

#ifdef FLOWTRAIN_WITH_CUDA
#include "cuda/device.hpp"
#include "cuda/driver.hpp"
#include "cuda/ipc.hpp"
#include "cuda/vmm.hpp"
#endif

namespace flowtrain::bindings {
namespace {

using memory::Kind;

memory::Resources all_resources() {
  memory::Resources out = memory::host_resources();
#ifdef FLOWTRAIN_WITH_CUDA
  out[static_cast<std::size_t>(Kind::kVmm)] = &cuda::vmm();
  out[static_cast<std::size_t>(Kind::kIpc)] = &cuda::ipc();
#endif
  return out;
}

/// UUID of a device; of none if there is no driver.
memory::DeviceId device_id([[maybe_unused]] int device) {
#ifdef FLOWTRAIN_WITH_CUDA
  if (cuda::why_not().empty()) return cuda::device_facts(device).id;
#endif
  return {};
}

}  // namespace

const memory::Resources& resources() {
  static const auto* const all = new memory::Resources(all_resources());
  return *all;
}

std::string why_not_on(Kind kind, int device) {
  return why_not(resources(), {kind, device_id(device)});
}

memory::Place place_of(const std::string& tier, int device) {
  if (device < 0) {
    throw BadArgument("add_segment: device=" + std::to_string(device) + " must be at least 0");
  }
  if (tier == "host") return {};
  if (tier == "fake") return {Kind::kFake, memory::fake_device(static_cast<std::uint32_t>(device))};
  const bool automatic = tier == "auto";
  const Kind kind = tier == "ipc" ? Kind::kIpc : Kind::kVmm;
  if (!automatic && tier != "device" && tier != "vmm" && tier != "ipc") {
    throw BadArgument("add_segment: tier='" + tier +
                      "' must be 'host', 'device', 'auto', 'vmm', 'ipc' or 'fake'");
  }
  const std::string reason = why_not_on(kind, device);
  if (reason.empty()) return {kind, device_id(device)};
  if (automatic) return {};
  throw MemoryUnreachable("add_segment: tier='" + tier + "', device=" + std::to_string(device) +
                          ": " + reason + "; or give tier='auto' or tier='host'");
}

}  // namespace flowtrain::bindings
