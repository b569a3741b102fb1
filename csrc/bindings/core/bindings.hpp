#pragma once

#include <pybind11/pybind11.h>

#include <memory>
#include <string>

#include "channel/layout/control.hpp"

namespace flowtrain::bindings {

void bind_errors(pybind11::module_& module);
void bind_pool(pybind11::module_& module);
void bind_producer(pybind11::module_& module);
void bind_consumer(pybind11::module_& module);
void bind_inspect(pybind11::module_& module);
void bind_cuda(pybind11::module_& module);
void bind_gateway(pybind11::module_& module);
void bind_packing(pybind11::module_& module);

/// Makes the classes of a module raise TypeError where pybind11 would use a missing object: in a
/// method call without `__init__`, and in pickling.
void guard_classes(pybind11::module_& module);

/// The C++ object of a Python one, where pybind11's own cast raises RuntimeError.
///
/// Errors: TypeError if the object is of another type, or its __init__ was not called.
template <class T>
std::shared_ptr<T> held(const pybind11::handle& self) {
  if (!pybind11::isinstance<T>(self)) {
    throw pybind11::type_error(std::string("self is of type '") + Py_TYPE(self.ptr())->tp_name +
                               "', and must be of the class of this method");
  }
  static_cast<void>(self.cast<T&>());  // See guard_classes.
  return self.cast<std::shared_ptr<T>>();
}

/// Adds `__enter__`, which returns `self`. A cast of the C++ object would make another Python
/// object if the present one was made by `wrapped`.
template <class Class>
void add_enter(Class& type) {
  type.def("__enter__", [](const pybind11::object& self) {
    static_cast<void>(held<typename Class::type>(self));
    return self;
  });
}

/// Adds the tier, kind and device of a segment's memory.
void add_place(pybind11::dict& segment, const memory::Place& place);
const char* role_name(channel::LaneRole role);
const char* state_name(channel::LaneState state);

}  // namespace flowtrain::bindings
