#pragma once

#include <memory>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "channel/layout/control.hpp"
#include "memory/resources.hpp"

namespace flowtrain::channel {

/// Enqueues the steps of a pool's stream words on the devices that one handle uses.
///
/// Memory:   registers the words with each device, until it is destroyed.
/// Threads:  any.
/// Progress: a short lock; the first call for a device registers the words.
/// Ordering: as memory::StreamSteps.
/// Errors:   as `on`.
class DeviceStreams {
 public:
  DeviceStreams(const Control& control, const memory::Resources& resources, std::string pool)
      : control_(control), resources_(resources), pool_(std::move(pool)) {}

  /// Errors: BadArgument for memory without streams; as memory::Resource::steps.
  const memory::StreamSteps& on(const memory::Place& place);
  /// Whether a stream may use the words.
  bool used() const;
  /// Leaves the words registered until the process ends, since streams use them.
  void keep();

 private:
  const Control& control_;
  const memory::Resources& resources_;
  std::string pool_;
  mutable std::mutex mutex_;
  std::vector<std::pair<memory::Place, std::shared_ptr<const memory::StreamSteps>>> steps_;
};

}  // namespace flowtrain::channel
