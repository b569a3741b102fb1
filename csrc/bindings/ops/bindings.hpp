#pragma once

#include <pybind11/pybind11.h>

namespace flowtrain::bindings {

void bind_kernels(pybind11::module_& module);
void bind_rows(pybind11::module_& module);
void bind_rotary(pybind11::module_& module);

}  // namespace flowtrain::bindings
