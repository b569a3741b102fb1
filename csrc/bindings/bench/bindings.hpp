#pragma once

#include <pybind11/pybind11.h>

namespace flowtrain::bindings {

void bind_measure(pybind11::module_& module);
void bind_torture(pybind11::module_& module);

}  // namespace flowtrain::bindings
