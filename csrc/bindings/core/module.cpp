#include "bindings/core/bindings.hpp"

namespace py = pybind11;

void flowtrain::bindings::guard_classes(py::module_& module) {
  const auto base = reinterpret_cast<PyTypeObject*>(py::detail::get_internals().instance_base);
  for (const auto& [name, value] : py::dict(module.attr("__dict__"))) {
    auto* const type = reinterpret_cast<PyTypeObject*>(value.ptr());
    if (!py::isinstance<py::type>(value) || PyType_IsSubtype(type, base) == 0) continue;
    // Called at the first use of an object whose __init__ never ran.
    py::detail::get_type_info(type)->operator_new = [](std::size_t) -> void* {
      throw py::type_error("self: its __init__() was not called");
    };
    value.attr("__reduce_ex__") = py::cpp_function(
        [](const py::object& self, const py::object&) {
          throw py::type_error(
              std::string("cannot pickle '") + Py_TYPE(self.ptr())->tp_name +
              "': it belongs to this process; open the pool by its name in the other process");
        },
        py::name("__reduce_ex__"), py::is_method(value));
  }
}

PYBIND11_MODULE(_C, module) {
  module.doc() = "FlowTrain's core: pool, ring, channel and gateway.";
  module.attr("__version__") = FLOWTRAIN_VERSION;
  flowtrain::bindings::bind_errors(module);
  flowtrain::bindings::bind_pool(module);
  flowtrain::bindings::bind_producer(module);
  flowtrain::bindings::bind_consumer(module);
  flowtrain::bindings::bind_inspect(module);
  flowtrain::bindings::bind_cuda(module);
  flowtrain::bindings::bind_gateway(module);
  flowtrain::bindings::bind_packing(module);
  flowtrain::bindings::guard_classes(module);
}
