#include "bindings/bindings.hpp"
#include "torture/torture.hpp"

namespace py = pybind11;

namespace flowtrain::bindings {
namespace {

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
  module.def("_idle_cpu_percent", &torture::idle_cpu_percent, py::arg("seconds"));
}

}  // namespace flowtrain::bindings
