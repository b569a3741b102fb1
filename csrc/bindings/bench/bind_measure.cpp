#include <pybind11/stl.h>

#include <tuple>

#include "bindings/bench/bindings.hpp"
#include "bindings/pool_folder.hpp"
#include "measure/idle_pool.hpp"
#include "measure/placements.hpp"
#include "measure/ring.hpp"
#include "measure/slab_pairs.hpp"
#include "os/available_memory.hpp"

namespace py = pybind11;

namespace flowtrain::bindings {
namespace {

/// Figure, ping-pong before, ping-pong after.
std::tuple<double, double, double> tuple_of(const measure::Figure& found) {
  return {found.value, found.ping_before_ns, found.ping_after_ns};
}

}  // namespace

void bind_measure(py::module_& module) {
  module.def(
      "ring_flow",
      [](std::uint32_t producers, std::uint32_t consumers, std::uint32_t batch, double seconds,
         std::uint32_t pauses, bool shared) {
        return tuple_of(measure::ring_flow({producers, consumers, batch, seconds, pauses, shared}));
      },
      py::kw_only(), py::arg("producers"), py::arg("consumers"), py::arg("batch"),
      py::arg("seconds"), py::arg("pauses"), py::arg("shared"));
  module.def(
      "slab_pairs_ns",
      [](std::uint32_t classes, std::uint32_t slabs, double fill, std::uint32_t processes,
         bool by_consumer, std::uint32_t pairs, std::uint32_t slices) {
        return measure::slab_pairs_ns(
            {classes, slabs, fill, processes, by_consumer, pairs, slices});
      },
      py::kw_only(), py::arg("classes"), py::arg("slabs"), py::arg("fill"), py::arg("processes"),
      py::arg("by_consumer"), py::arg("pairs"), py::arg("slices"),
      py::call_guard<ReadsPoolFolder>());
  module.def(
      "pool_flow",
      [](std::uint32_t producers, std::uint32_t consumers, std::uint32_t batch, double seconds,
         bool records) {
        return tuple_of(measure::pool_flow({producers, consumers, batch, seconds}, records));
      },
      py::kw_only(), py::arg("producers"), py::arg("consumers"), py::arg("batch"),
      py::arg("seconds"), py::arg("records"), py::call_guard<ReadsPoolFolder>());
  module.def(
      "ring_round_trip", [](double seconds) { return tuple_of(measure::ring_round_trip(seconds)); },
      py::kw_only(), py::arg("seconds"));
  module.def("reclaim_times_ms", &measure::reclaim_times_ms, py::arg("kills"),
             py::call_guard<ReadsPoolFolder>());
  module.def("idle_cpu_percent", &measure::idle_cpu_percent, py::arg("seconds"),
             py::call_guard<ReadsPoolFolder>());
  module.def(
      "receive_placements",
      [](const std::string& path, const std::string& host, const std::string& ticket,
         const std::string& library, const std::vector<std::string>& others, std::uint64_t bytes,
         std::uint32_t window, const py::function& tell) {
        measure::receive_placements({path, host, ticket, library, others, bytes, window},
                                    [&](const std::string& address, std::uint64_t registrations) {
                                      py::dict facts;
                                      facts["address"] = address;
                                      facts["registrations"] = registrations;
                                      tell(facts);
                                    });
      },
      py::kw_only(), py::arg("path"), py::arg("host"), py::arg("ticket"), py::arg("library"),
      py::arg("others"), py::arg("bytes"), py::arg("window"), py::arg("tell"));
  module.def(
      "send_placements",
      [](const std::string& path, const std::string& host, const std::string& ticket,
         const std::string& library, const std::vector<std::string>& others, std::uint64_t bytes,
         std::uint32_t window, const std::string& address, double seconds) {
        const measure::FlowFigure found = measure::send_placements(
            {path, host, ticket, library, others, bytes, window}, address, seconds);
        py::dict out;
        out["bytes_per_s"] = found.bytes_per_s;
        out["round_trip_us"] = found.round_trip_ns / 1000;
        return out;
      },
      py::kw_only(), py::arg("path"), py::arg("host"), py::arg("ticket"), py::arg("library"),
      py::arg("others"), py::arg("bytes"), py::arg("window"), py::arg("address"),
      py::arg("seconds"));
  module.def(
      "find_ucx",
      [](const std::string& host, const std::string& library,
         const std::vector<std::string>& others) {
        const measure::UcxCopy found = measure::find_ucx(host, library, others);
        py::dict out;
        out["library"] = found.library;
        out["version"] = found.version;
        out["settings"] = found.settings;
        return out;
      },
      py::kw_only(), py::arg("host"), py::arg("library"), py::arg("others"));
  module.def("memcpy_bytes_per_s", &measure::measure_memcpy, py::kw_only(), py::arg("bytes"),
             py::arg("seconds"));
  module.def("available_bytes", [] { return os::available_memory().bytes; });
}

}  // namespace flowtrain::bindings
