#pragma once

#include <pybind11/pybind11.h>

namespace flowtrain::bindings {

void bind_errors(pybind11::module_& module);
void bind_pool(pybind11::module_& module);
void bind_channel(pybind11::module_& module);

}  // namespace flowtrain::bindings
