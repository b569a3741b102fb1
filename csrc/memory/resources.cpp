#include "memory/resources.hpp"

#include "memory/fake.hpp"
#include "memory/memfd.hpp"

namespace flowtrain::memory {

Resources host_resources() {
  Resources out{};
  out[static_cast<std::size_t>(Kind::kMemfd)] = &memfd();
  out[static_cast<std::size_t>(Kind::kFake)] = &fake();
  return out;
}

std::string why_not(const Resources& resources, const Place& place) {
  const Resource* const resource = resource_of(resources, place.kind);
  if (resource != nullptr) return resource->why_not(place.device);
  return "this process has no support for this kind, as if flowtrain_core was built without CUDA; "
         "build it with the CUDA toolkit";
}

}  // namespace flowtrain::memory
