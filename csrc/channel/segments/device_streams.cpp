#include "channel/segments/device_streams.hpp"

#include "base/error.hpp"

namespace flowtrain::channel {

const memory::StreamSteps& DeviceStreams::on(const memory::Place& place) {
  const std::lock_guard lock(mutex_);
  for (const auto& [of, steps] : steps_) {
    if (of == place) return *steps;
  }
  const memory::Resource* const resource = resource_of(resources_, place.kind);
  auto steps = resource == nullptr ? nullptr
                                   : resource->steps(control_.streams(), place.device,
                                                     "pool '" + pool_ + "': its stream words");
  if (!steps) {
    throw BadArgument("pool '" + pool_ + "': memory of kind " + text(place) +
                      " has no streams; give no stream, and publish or release once all accesses "
                      "are complete");
  }
  return *steps_.emplace_back(place, std::move(steps)).second;
}

bool DeviceStreams::used() const {
  const std::lock_guard lock(mutex_);
  return !steps_.empty();
}

void DeviceStreams::keep() {
  const std::lock_guard lock(mutex_);
  static_cast<void>(new auto(steps_));
}

}  // namespace flowtrain::channel
