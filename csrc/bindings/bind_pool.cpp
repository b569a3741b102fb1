#include <pybind11/stl.h>

#include "base/error.hpp"
#include "bindings/bindings.hpp"
#include "channel/pool.hpp"
#include "os/folder.hpp"

namespace py = pybind11;

namespace flowtrain::bindings {
namespace {

using channel::LaneInfo;
using channel::LaneRole;
using channel::LaneState;
using channel::Pool;

const char* role_name(LaneRole role) {
  switch (role) {
    case LaneRole::kPool: return "pool";
    case LaneRole::kProducer: return "producer";
    case LaneRole::kConsumer: return "consumer";
  }
  return "?";
}

const char* state_name(LaneState state) {
  switch (state) {
    case LaneState::kFree: return "free";
    case LaneState::kAlive: return "alive";
    case LaneState::kLeft: return "left";
    case LaneState::kDead: return "dead";
  }
  return "?";
}

using Classes = std::vector<std::pair<std::uint64_t, std::uint32_t>>;

std::uint32_t add_segment(Pool& pool, std::optional<std::uint64_t> bytes,
                          const std::optional<Classes>& classes, bool prefault) {
  if (bytes.has_value() == classes.has_value()) {
    throw BadArgument("add_segment: give exactly one of bytes and classes");
  }
  std::vector<memory::SlabClass> wanted;
  if (bytes) {
    wanted = memory::default_classes(*bytes);
  } else {
    for (const auto& [slab_bytes, count] : *classes) wanted.push_back({slab_bytes, count});
  }
  const py::gil_scoped_release release;
  return pool.add_segment(memory::carve(std::move(wanted)), prefault);
}

std::shared_ptr<Pool> create(const std::string& name, std::uint64_t bytes,
                             const std::optional<Classes>& classes,
                             const std::vector<std::string>& rings, std::uint32_t max_cells,
                             std::uint32_t max_lanes, const std::string& label, bool prefault) {
  auto pool = Pool::create({name, label, rings, max_cells, max_lanes});
  if (bytes > 0 && classes) throw BadArgument("Pool.create: give bytes or classes, not both");
  if (bytes > 0) add_segment(*pool, bytes, std::nullopt, prefault);
  if (classes) add_segment(*pool, std::nullopt, classes, prefault);
  return pool;
}

py::dict stats(const Pool& pool) {
  pool.check_open();
  py::list segments;
  for (const channel::SegmentInfo& s : pool.segments()) {
    py::dict entry;
    entry["id"] = s.id;
    entry["owner"] = s.owner;
    entry["bytes"] = s.bytes;
    entry["slabs"] = s.slabs;
    entry["in_use_slabs"] = s.slabs_in_use;
    entry["in_use_bytes"] = s.bytes_in_use;
    segments.append(std::move(entry));
  }
  std::uint64_t published = 0, bytes = 0, taken = 0, released = 0, redelivered = 0, lost = 0;
  for (std::uint32_t i = 0; i < pool.control().geometry().max_lanes; ++i) {
    const channel::Lane& lane = pool.control().lane(i);
    published += lane.items_published.load(std::memory_order_relaxed);
    bytes += lane.bytes_published.load(std::memory_order_relaxed);
    taken += lane.items_taken.load(std::memory_order_relaxed);
    released += lane.items_released.load(std::memory_order_relaxed);
    redelivered += lane.items_redelivered.load(std::memory_order_relaxed);
    lost += lane.items_lost.load(std::memory_order_relaxed);
  }
  py::dict out;
  out["segments"] = std::move(segments);
  out["items_published"] = published;
  out["bytes_published"] = bytes;
  out["items_taken"] = taken;
  out["items_released"] = released;
  out["items_redelivered"] = redelivered;
  out["items_lost"] = lost;
  return out;
}

}  // namespace

void bind_pool(py::module_& module) {
  py::class_<LaneInfo>(module, "LaneInfo")
      .def_readonly("index", &LaneInfo::index)
      .def_readonly("label", &LaneInfo::label)
      .def_readonly("pid", &LaneInfo::pid)
      .def_property_readonly("role", [](const LaneInfo& l) { return role_name(l.role); })
      .def_property_readonly("state", [](const LaneInfo& l) { return state_name(l.state); })
      .def("__repr__", [](const LaneInfo& l) {
        return "LaneInfo(index=" + std::to_string(l.index) + ", label='" + l.label + "', role='" +
               role_name(l.role) + "', pid=" + std::to_string(l.pid) + ", state='" +
               state_name(l.state) + "')";
      });

  py::class_<channel::PoolEntry>(module, "PoolEntry")
      .def_readonly("name", &channel::PoolEntry::name)
      .def_readonly("creator_pid", &channel::PoolEntry::creator_pid)
      .def_readonly("alive", &channel::PoolEntry::alive);

  py::class_<Pool, std::shared_ptr<Pool>>(module, "Pool")
      .def_static("create", &create, py::arg("name"), py::kw_only(), py::arg("bytes") = 0,
                  py::arg("classes") = py::none(),
                  py::arg("rings") = std::vector<std::string>{"default"},
                  py::arg("max_cells") = 4096, py::arg("max_lanes") = 128, py::arg("label") = "",
                  py::arg("prefault") = true)
      .def_static("open", &Pool::open, py::arg("name"), py::kw_only(), py::arg("label") = "",
                  py::arg("timeout_s") = 0.0, py::call_guard<py::gil_scoped_release>())
      .def_static("unlink", &os::remove_pool_folder, py::arg("name"))
      .def("add_segment", &add_segment, py::kw_only(), py::arg("bytes") = py::none(),
           py::arg("classes") = py::none(), py::arg("prefault") = true)
      .def_property_readonly("name", &Pool::name)
      .def_property_readonly("label", &Pool::label)
      .def_property_readonly("lane", &Pool::lane)
      .def_property_readonly("closed", &Pool::closed)
      .def_property_readonly("rings",
                             [](const Pool& pool) { return py::tuple(py::cast(pool.ring_names())); })
      .def("lanes",
           [](const Pool& pool) {
             pool.check_open();
             return pool.lanes();
           })
      .def(
          "wait_dead",
          [](Pool& pool, double timeout_s) { return pool.wait_dead(Deadline::in(timeout_s)); },
          py::arg("timeout_s"), py::call_guard<py::gil_scoped_release>())
      .def("stats", &stats)
      .def("close", &Pool::close, py::call_guard<py::gil_scoped_release>())
      .def("__enter__", [](std::shared_ptr<Pool> pool) { return pool; })
      .def("__exit__", [](Pool& pool, const py::args&) { pool.close(); });

  module.def("list_pools", &channel::list_pools);
  py::module_::import("atexit").attr("register")(py::cpp_function(&channel::close_all_pools));
}

}  // namespace flowtrain::bindings
