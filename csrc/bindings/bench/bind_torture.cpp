#include "bindings/bench/bindings.hpp"
#include "torture/fault_injection.hpp"

namespace py = pybind11;

namespace flowtrain::bindings {
namespace {

py::dict inject_faults(std::uint32_t kills, std::uint32_t stops, double max_s, std::uint64_t seed,
                       bool tight, const std::string& without) {
  const torture::Report report =
      torture::inject_faults({kills, stops, max_s, seed, tight, without});
  py::dict out;
  out["kills"] = report.kills;
  out["stops"] = report.stops;
  out["published"] = report.published;
  out["shrunk"] = report.shrunk;
  out["committed"] = report.committed;
  out["undecided"] = report.undecided;
  out["lost"] = report.lost;
  out["committed_twice"] = report.committed_twice;
  out["corrupt"] = report.corrupt;
  out["crashed"] = report.crashed;
  out["leaked_slabs"] = report.leaked_slabs;
  out["leaked_bytes"] = report.leaked_bytes;
  out["redelivered"] = report.redelivered;
  out["kills_in_window"] = report.kills > 0 ? static_cast<double>(report.kills_in_window) /
                                                  static_cast<double>(report.kills)
                                            : 0.0;
  out["longest_stall_ms"] = report.longest_stall_ms;
  out["stalled_by_stop"] = report.stalled_by_stop;
  out["seconds"] = report.seconds;
  return out;
}

}  // namespace

void bind_torture(py::module_& module) {
  module.def("inject_faults", &inject_faults, py::kw_only(), py::arg("kills"), py::arg("stops"),
             py::arg("max_s"), py::arg("seed"), py::arg("tight"), py::arg("without"));
}

}  // namespace flowtrain::bindings
