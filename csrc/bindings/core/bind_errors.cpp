#include "base/error.hpp"
#include "bindings/core/bindings.hpp"

namespace py = pybind11;

namespace flowtrain::bindings {

void bind_errors(py::module_& module) {
  const auto& root = py::register_exception<Error>(module, "FlowTrainError");
  // Translators run in reverse order of registration, so each kind is caught before its base.
#define FLOWTRAIN_BIND_ERROR(name, second) \
  py::register_exception<name>(module, #name, py::make_tuple(root, py::handle(second)));
  FLOWTRAIN_ERRORS(FLOWTRAIN_BIND_ERROR)
#undef FLOWTRAIN_BIND_ERROR
}

}  // namespace flowtrain::bindings
