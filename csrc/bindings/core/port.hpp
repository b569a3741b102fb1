#pragma once

#include <pybind11/pybind11.h>

#include <memory>

#include "bindings/core/bindings.hpp"
#include "bindings/gil.hpp"
#include "channel/pool.hpp"
#include "channel/telemetry/inspect.hpp"

namespace flowtrain::bindings {

/// Common parts of the bindings of producers and consumers.

/// Key of registrations with CUDA, which attach to a pool's memory.
inline constexpr const char* kRegistration = "cuda";

/// Makes a call that never waits for a peer. Releases the GIL only if the call may map memory,
/// which a device can take seconds to register.
template <class Call>
auto call_at_once(channel::Pool& pool, Call call) {
  if (!pool.segments().has_unmapped()) return call();
  const WithoutGil release;
  return call();
}

/// Facts of a producer or consumer, of which flowtrain_core.edges makes an explanation.
template <class Port>
pybind11::dict port_facts(const Port& port) {
  channel::Pool& pool = port.pool();
  pool.check_open();
  pybind11::list segments;
  for (const channel::SegmentInfo& info : segment_infos(pool.control())) {
    const auto memory = pool.segments().memory_of(info.id);
    pybind11::dict entry;
    entry["id"] = info.id;
    entry["owner"] = info.owner;
    add_place(entry, info.place);
    entry["bytes"] = info.bytes;
    entry["in_use_bytes"] = info.bytes_in_use;
    entry["unused_bytes"] = info.bytes_unused;
    entry["mapped"] = memory != nullptr;
    entry["registered"] = memory && memory->has_attached(kRegistration);
    segments.append(std::move(entry));
  }
  pybind11::dict out;
  out["pool"] = pool.name();
  out["ring"] = pool.control().ring_name(port.ring());
  out["label"] = pool.label();
  out["lane"] = port.lane();
  out["segments"] = std::move(segments);
  return out;
}

/// Explanation of an edge by flowtrain_core.edges, which is imported at the first call.
template <auto kFacts, class Port>
pybind11::object explain(Port& port, bool measure) {
  return pybind11::module_::import("flowtrain_core.edges")
      .attr("explanation_of")(kFacts(port), measure);
}

/// Adds `close` and the context manager, the same for producers and consumers.
template <class Class>
void add_close(Class& type) {
  using T = typename Class::type;
  add_enter(type);
  type.def("close", &T::close).def("__exit__", [](T& self, const pybind11::args&) {
    self.close();
  });
}

}  // namespace flowtrain::bindings
