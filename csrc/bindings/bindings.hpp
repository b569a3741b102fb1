#pragma once

#include <pybind11/pybind11.h>

#include "channel/layout/control.hpp"

namespace flowtrain::bindings {

void bind_errors(pybind11::module_& module);
void bind_pool(pybind11::module_& module);
void bind_producer(pybind11::module_& module);
void bind_consumer(pybind11::module_& module);
void bind_inspect(pybind11::module_& module);
void bind_cuda(pybind11::module_& module);
void bind_kernels(pybind11::module_& module);
void bind_packing(pybind11::module_& module);
void bind_measure(pybind11::module_& module);
void bind_torture(pybind11::module_& module);

/// Makes the classes of a module raise TypeError where pybind11 would use a missing object: in a
/// method call without `__init__`, and in pickling.
void guard_classes(pybind11::module_& module);

const char* role_name(channel::LaneRole role);
const char* state_name(channel::LaneState state);

}  // namespace flowtrain::bindings
