#include <pybind11/stl.h>

#include <algorithm>
#include <memory>

#include "base/error.hpp"
#include "bindings/core/arguments.hpp"
#include "bindings/core/bindings.hpp"
#include "bindings/core/tiers.hpp"
#include "bindings/gil.hpp"
#include "bindings/pool_folder.hpp"
#include "channel/liveness/registry.hpp"
#include "channel/pool.hpp"
#include "channel/pool_names.hpp"
#include "channel/telemetry/inspect.hpp"
#include "os/folder.hpp"
#include "os/removal_on_signal.hpp"

namespace py = pybind11;

namespace flowtrain::bindings {
namespace {

using channel::LaneInfo;
using channel::Pool;

using Classes = std::vector<std::pair<py::object, py::object>>;

constexpr std::uint32_t kDefaultCells = 4096;
constexpr std::uint32_t kSegmentsOnDemand = 4;   // For which max_cells suffice, at least.
constexpr std::uint32_t kSlabsOnDemand = 16384;  // Of such a segment by default: 64 MiB of pages.

memory::Carving carving_of(std::uint64_t bytes, std::uint32_t max_cells) {
  return memory::carve_on_demand(bytes, std::max(1U, max_cells / kSegmentsOnDemand));
}

memory::Carving carving_of(const Classes& classes) {
  std::vector<memory::SlabClass> wanted;
  for (const auto& [slab_bytes, count] : classes) {
    wanted.push_back({static_cast<std::uint64_t>(number_in(slab_bytes, "slab_bytes", 0, INT64_MAX)),
                      static_cast<std::uint32_t>(number_in(count, "count", 0, UINT32_MAX))});
  }
  return memory::carve(std::move(wanted));
}

std::uint32_t add_segment(Pool& pool, const memory::Carving& carving, bool prefault,
                          const std::string& tier, int device) {
  std::uint32_t number = 0;
  try {
    const WithoutGil release;
    number = pool.add_segment(carving, prefault, SignalCheck(), place_of(tier, device));
  } catch (const PoolClosed&) {
    if (PyErr_Occurred() == nullptr) throw;  // Otherwise a signal handler closed it, and raised.
  }
  if (number == 0) throw py::error_already_set();
  return number;
}

std::uint32_t add_segment(Pool& pool, const py::object& bytes,
                          const std::optional<Classes>& classes, bool prefault,
                          const std::string& tier, int device) {
  pool.check_open();
  if (bytes.is_none() != classes.has_value()) {
    throw BadArgument("add_segment: give exactly one of bytes and classes");
  }
  if (classes) return add_segment(pool, carving_of(*classes), prefault, tier, device);
  const auto size =
      static_cast<std::uint64_t>(number_in(bytes, "add_segment: bytes", 0, INT64_MAX));
  return add_segment(pool, carving_of(size, pool.control().geometry().max_cells), prefault, tier,
                     device);
}

/// Raises the present error in the main thread, at its next instruction: a destructor cannot raise.
void raise_later() {
  auto error = std::make_unique<py::error_already_set>();
  const auto raise = [](void* raised) {
    std::unique_ptr<py::error_already_set>(static_cast<py::error_already_set*>(raised))->restore();
    return -1;
  };
  if (Py_AddPendingCall(raise, error.get()) == 0) {
    static_cast<void>(error.release());
  } else {
    error->discard_as_unraisable("the end of a pool handle");
  }
}

/// Closes and deletes a handle without the GIL: a close waits for threads, and one of them may wait
/// for the GIL. The last reference may be dropped by any thread, with the GIL or without it.
void destroy(Pool* pool) {
  // After the end of the interpreter PyGILState_Check returns 1.
  if (Py_IsInitialized() == 0 || PyGILState_Check() == 0) {
    delete pool;
    return;
  }
  const py::error_scope outer;  // An error that is being handled.
  std::string failure;
  {
    const WithoutGil release;
    try {
      pool->close(SignalCheck());
    } catch (const Error& error) {
      failure = error.what();
    }
    delete pool;
  }
  // Of a signal handler, which ended the wait.
  if (PyErr_Occurred() != nullptr) raise_later();
  if (failure.empty()) return;
  PyErr_SetString(PyExc_ResourceWarning, failure.c_str());
  PyErr_WriteUnraisable(nullptr);
}

/// Makes a call that closes pools.
template <class Call>
void closing(Call call) {
  try {
    const WithoutGil release;
    call(SignalCheck());
  } catch (const Error&) {
    if (PyErr_Occurred() == nullptr) throw;
    // A signal handler raised. Its error goes on, with what may be lost as its context.
    const py::error_already_set raised;
    py::detail::try_translate_exceptions();
    const py::error_already_set loss;
    PyException_SetContext(raised.value().ptr(), loss.value().inc_ref().ptr());
    throw raised;
  }
  if (PyErr_Occurred() != nullptr) throw py::error_already_set();
}

void close(Pool& pool) {
  closing([&pool](const Interrupted& interrupted) { pool.close(interrupted); });
}

/// A new handle; without one, a signal handler raised.
std::shared_ptr<Pool> for_caller(std::shared_ptr<Pool> pool) {
  if (!pool) throw py::error_already_set();
  py::module_::import("flowtrain_core._exit").attr("close_at_exit")();
  return pool;
}

std::shared_ptr<Pool> create(const std::string& name, const py::object& bytes,
                             const std::optional<Classes>& classes,
                             const std::vector<std::string>& rings, const py::object& max_cells,
                             const py::object& max_lanes, const std::string& label, bool prefault,
                             const std::string& tier, int device) {
  const auto number = [](const py::object& given, const char* what) {
    return static_cast<std::uint32_t>(number_in(given, what, 0, UINT32_MAX));
  };
  const auto size =
      static_cast<std::uint64_t>(number_in(bytes, "Pool.create: bytes", 0, INT64_MAX));
  if (size > 0 && classes) throw BadArgument("Pool.create: give bytes or classes, not both");
  std::optional<memory::Carving> carving;
  std::uint64_t cells = kDefaultCells;
  if (classes) {
    carving = carving_of(*classes);
    cells += carving->slabs;
  } else if (size > 0) {
    cells = std::max<std::uint64_t>(
        cells, kSegmentsOnDemand * std::min<std::uint64_t>(size / kPageBytes, kSlabsOnDemand));
  }
  cells = std::min<std::uint64_t>(cells, lockfree::kMaxCells);
  if (!max_cells.is_none()) cells = number(max_cells, "Pool.create: max_cells");
  if (size > 0) carving = carving_of(size, static_cast<std::uint32_t>(cells));
  const std::uint32_t lanes = number(max_lanes, "Pool.create: max_lanes");
  os::remove_pools_on_signals();  // With the GIL, under which Python sets its handlers.
  std::shared_ptr<Pool> pool;
  {
    const WithoutGil release;
    std::optional<channel::SegmentOptions> first;
    if (carving) first = {std::move(*carving), prefault, place_of(tier, device)};
    pool = Pool::create({name, label, rings, static_cast<std::uint32_t>(cells), lanes, resources()},
                        first, SignalCheck(), &destroy);
  }
  return for_caller(std::move(pool));
}

std::shared_ptr<Pool> open(const std::string& name, const std::string& label, double timeout_s) {
  const Deadline deadline = deadline_in(timeout_s);
  os::remove_pools_on_signals();
  std::shared_ptr<Pool> pool;
  {
    const WithoutGil release;
    pool = Pool::open(name, label, deadline, SignalCheck(), &destroy, resources());
  }
  return for_caller(std::move(pool));
}

bool unlink(const std::string& name, bool only_left) {
  bool removed = false;
  {
    const WithoutGil release;
    removed = channel::unlink_pool(name, only_left, SignalCheck());
  }
  if (PyErr_Occurred() != nullptr) throw py::error_already_set();
  return removed;
}

std::optional<LaneInfo> wait_dead(Pool& pool, double timeout_s) {
  const Deadline deadline = deadline_in(timeout_s);
  constexpr std::int64_t kSliceNs = 100'000'000;
  for (;;) {
    {
      const WithoutGil release;
      const auto slice = static_cast<double>(deadline.left_ns(kSliceNs)) * 1e-9;
      if (auto lane = pool.wait_dead(Deadline::in(slice))) return lane;
      if (deadline.passed() || pool.closed()) return std::nullopt;
    }
    if (PyErr_CheckSignals() != 0) throw py::error_already_set();
  }
}

std::uint64_t sum(const Pool& pool, std::atomic<std::uint64_t> channel::Lane::* counter) {
  std::uint64_t total = 0;
  for (std::uint32_t i = 0; i < pool.control().geometry().max_lanes; ++i) {
    total += (pool.control().lane(i).*counter).load(std::memory_order_relaxed);
  }
  return total;
}

py::dict stats(Pool& pool) {
  pool.check_open();
  using channel::Lane;
  py::list segments;
  for (const channel::SegmentInfo& s : segment_infos(pool.control())) {
    py::dict entry;
    entry["id"] = s.id;
    entry["owner"] = s.owner;
    entry["bytes"] = s.bytes;
    entry["slabs"] = s.slabs;
    entry["in_use_slabs"] = s.slabs_in_use;
    entry["in_use_bytes"] = s.bytes_in_use;
    entry["unused_bytes"] = s.bytes_unused;
    segments.append(std::move(entry));
  }
  py::dict out;
  out["segments"] = std::move(segments);
  out["items_published"] = sum(pool, &Lane::items_published);
  out["bytes_published"] = sum(pool, &Lane::bytes_published);
  out["items_taken"] = sum(pool, &Lane::items_taken);
  out["items_released"] = sum(pool, &Lane::items_released);
  out["redelivered"] = sum(pool, &Lane::items_redelivered);
  out["lost"] = sum(pool, &Lane::items_lost);
  return out;
}

}  // namespace

void bind_pool(py::module_& module) {
  py::class_<LaneInfo>(module, "LaneInfo")
      .def_readonly("index", &LaneInfo::index)
      .def_readonly("label", &LaneInfo::label)
      .def_readonly("pid", &LaneInfo::pid)
      .def_property_readonly("role", [](const LaneInfo& l) { return role_name(l.role); })
      .def_property_readonly("ring",
                             [](const LaneInfo& l) -> std::optional<std::uint16_t> {
                               if (l.role == channel::LaneRole::kPool) return std::nullopt;
                               return l.ring;
                             })
      .def_property_readonly("state", [](const LaneInfo& l) { return state_name(l.state); })
      .def("__repr__", [](const LaneInfo& l) {
        return "LaneInfo(index=" + std::to_string(l.index) + ", label='" + l.label + "', role='" +
               role_name(l.role) + "', pid=" + std::to_string(l.pid) + ", state='" +
               state_name(l.state) + "')";
      });

  py::class_<channel::PoolEntry>(module, "PoolEntry")
      .def_readonly("name", &channel::PoolEntry::name)
      .def_readonly("creator_pid", &channel::PoolEntry::creator_pid)
      .def_readonly("nonce", &channel::PoolEntry::nonce)
      .def_readonly("alive", &channel::PoolEntry::alive)
      .def_readonly("error", &channel::PoolEntry::error)
      .def("__repr__", [](const channel::PoolEntry& p) {
        return "PoolEntry(name='" + p.name + "', creator_pid=" + std::to_string(p.creator_pid) +
               ", alive=" + (p.alive ? "True)" : "False)");
      });

  py::class_<Pool, std::shared_ptr<Pool>> pool_type(module, "Pool");
  pool_type
      .def_static("create", &create, py::arg("name"), py::kw_only(), py::arg("bytes") = 0,
                  py::arg("classes") = py::none(),
                  py::arg("rings") = std::vector<std::string>{"default"},
                  py::arg("max_cells") = py::none(), py::arg("max_lanes") = 128,
                  py::arg("label") = "", py::arg("prefault") = true, py::arg("tier") = "host",
                  py::arg("device") = 0, py::call_guard<ReadsPoolFolder>())
      .def_static("open", &open, py::arg("name"), py::kw_only(), py::arg("label") = "",
                  py::arg("timeout_s") = 0.0, py::call_guard<ReadsPoolFolder>())
      .def_static("exists", &channel::pool_exists, py::arg("name"),
                  py::call_guard<ReadsPoolFolder>())
      .def_static("unlink", &unlink, py::arg("name"), py::kw_only(), py::arg("only_left") = false,
                  py::call_guard<ReadsPoolFolder>())
      .def("add_segment",
           py::overload_cast<Pool&, const py::object&, const std::optional<Classes>&, bool,
                             const std::string&, int>(&add_segment),
           py::kw_only(), py::arg("bytes") = py::none(), py::arg("classes") = py::none(),
           py::arg("prefault") = true, py::arg("tier") = "host", py::arg("device") = 0)
      .def(
          "drop_segment",
          [](Pool& pool, const py::object& segment) {
            const auto number = static_cast<std::uint32_t>(
                number_in(segment, "drop_segment: segment", 1, channel::kMaxSegments));
            const WithoutGil release;
            pool.drop_segment(number);
          },
          py::arg("segment"))
      .def_property_readonly("name", &Pool::name)
      .def_property_readonly("label", &Pool::label)
      .def_property_readonly("lane", &Pool::lane)
      .def_property_readonly("closed", &Pool::closed)
      .def_property_readonly(
          "rings", [](const Pool& pool) { return py::tuple(py::cast(pool.ring_names())); })
      .def("lanes",
           [](Pool& pool) {
             pool.check_open();
             return pool.lanes().all();
           })
      .def("wait_dead", &wait_dead, py::arg("timeout_s"))
      .def("stats", &stats)
      .def("lost",
           [](Pool& pool) {
             pool.check_open();
             return sum(pool, &channel::Lane::items_lost);
           })
      .def("close", &close)
      .def("__repr__",
           [](const Pool& p) {
             return "Pool(name='" + p.name() + "', label='" + p.label() +
                    "', lane=" + std::to_string(p.lane()) + (p.closed() ? ", closed)" : ")");
           })
      .def("__exit__", [](Pool& pool, const py::args&) { close(pool); });
  add_enter(pool_type);

  module.def("list_pools", &channel::list_pools, py::call_guard<ReadsPoolFolder>());
  module.def("_pool_folder", &os::runtime_folder, py::call_guard<ReadsPoolFolder>());
  module.def("leave_pools", &os::leave_pools);
  module.def("_close_pools", [] { closing(&channel::close_all_pools); });
}

}  // namespace flowtrain::bindings
