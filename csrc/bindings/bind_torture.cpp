#include <pybind11/stl.h>

#include <tuple>

#include "bindings/bindings.hpp"
#include "channel/measure/ring.hpp"
#include "channel/measure/slab_pairs.hpp"
#include "channel/torture/torture.hpp"

namespace py = pybind11;

namespace flowtrain::bindings {
namespace {

namespace measure = channel::measure;
namespace torture = channel::torture;

/// Figure, ping-pong before, ping-pong after.
std::tuple<double, double, double> slice(const measure::Slice& found) {
  return {found.value, found.ping_before_ns, found.ping_after_ns};
}

py::dict run_storm(std::uint32_t kills, std::uint32_t stops, double most_s, std::uint64_t seed,
                   bool tight, const std::string& without) {
  const torture::Storm storm = torture::storm({kills, stops, most_s, seed, tight, without});
  py::dict out;
  out["kills"] = storm.kills;
  out["stops"] = storm.stops;
  out["published"] = storm.published;
  out["committed"] = storm.committed;
  out["undecided"] = storm.undecided;
  out["lost"] = storm.lost;
  out["committed_twice"] = storm.committed_twice;
  out["corrupt"] = storm.corrupt;
  out["crashed"] = storm.crashed;
  out["leaked_slabs"] = storm.leaked_slabs;
  out["leaked_bytes"] = storm.leaked_bytes;
  out["redelivered"] = storm.redelivered;
  out["kills_in_window"] = storm.kills > 0 ? static_cast<double>(storm.kills_in_window) /
                                                 static_cast<double>(storm.kills)
                                           : 0.0;
  out["longest_stall_ms"] = storm.longest_stall_ms;
  out["stalled_by_stop"] = storm.stalled_by_stop;
  out["seconds"] = storm.seconds;
  return out;
}

py::list reclaim_times_ms(std::uint32_t kills) {
  py::list out;
  for (const double ms : torture::reclaim_times_ms(kills)) out.append(ms);
  return out;
}

}  // namespace

void bind_torture(py::module_& module) {
  module.def("_storm", &run_storm, py::kw_only(), py::arg("kills"), py::arg("stops"),
             py::arg("most_s"), py::arg("seed"), py::arg("tight"), py::arg("without"));
  module.def("_reclaim_times_ms", &reclaim_times_ms, py::arg("kills"));
  module.def(
      "_ring_flow",
      [](std::uint32_t producers, std::uint32_t consumers, std::uint32_t batch, double seconds,
         std::uint32_t pauses, bool shared) {
        return slice(measure::ring_flow({producers, consumers, batch, seconds, pauses, shared}));
      },
      py::kw_only(), py::arg("producers"), py::arg("consumers"), py::arg("batch"),
      py::arg("seconds"), py::arg("pauses"), py::arg("shared"));
  module.def(
      "_slab_pairs_ns",
      [](std::uint32_t classes, std::uint32_t slabs, double fill, std::uint32_t processes,
         bool elsewhere, std::uint32_t pairs, std::uint32_t slices) {
        return measure::slab_pairs_ns({classes, slabs, fill, processes, elsewhere, pairs, slices});
      },
      py::kw_only(), py::arg("classes"), py::arg("slabs"), py::arg("fill"), py::arg("processes"),
      py::arg("elsewhere"), py::arg("pairs"), py::arg("slices"));
  module.def(
      "_pool_flow",
      [](std::uint32_t producers, std::uint32_t consumers, std::uint32_t batch, double seconds,
         bool records) {
        return slice(measure::pool_flow({producers, consumers, batch, seconds}, records));
      },
      py::kw_only(), py::arg("producers"), py::arg("consumers"), py::arg("batch"),
      py::arg("seconds"), py::arg("records"));
  module.def(
      "_ring_round_trip", [](double seconds) { return slice(measure::ring_round_trip(seconds)); },
      py::kw_only(), py::arg("seconds"));
  module.def("_idle_cpu_percent", &torture::idle_cpu_percent, py::arg("seconds"));
}

}  // namespace flowtrain::bindings
