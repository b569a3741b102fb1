#pragma once

#include <cxxabi.h>
#include <pybind11/pybind11.h>

#include <array>
#include <cstddef>
#include <memory>
#include <new>
#include <string>
#include <utility>

#include "bindings/gil.hpp"

namespace flowtrain::bindings {

/// Methods called for every item, bound by the interpreter's own vectorcall: pybind11's dispatch by
/// name and overload takes longer than the methods themselves.

/// Names of a method's parameters, each of which may be passed by position or by keyword.
template <std::size_t N>
class Parameters {
 public:
  using Values = std::array<PyObject*, N>;

  /// @param required  Number of leading parameters without a default.
  Parameters(const char* method, const std::array<const char*, N>& names, std::size_t required)
      : method_(method), required_(required) {
    // Interned and never freed, like the keywords of calls, so that equal names are one object.
    for (std::size_t i = 0; i < N; ++i) names_[i] = PyUnicode_InternFromString(names[i]);
  }

  /// Borrowed values by position; null for a parameter left to its default.
  ///
  /// Errors: TypeError, as from a Python function.
  Values bind(PyObject* const* args, Py_ssize_t num_args, PyObject* keywords) const {
    const auto given = static_cast<std::size_t>(num_args);
    Values values{};
    if (given > N) fail("takes at most %zu arguments (%zu given)", N, given);
    for (std::size_t i = 0; i < given; ++i) values[i] = args[i];
    const Py_ssize_t named = keywords == nullptr ? 0 : PyTuple_GET_SIZE(keywords);
    for (Py_ssize_t k = 0; k < named; ++k) {
      PyObject* const name = PyTuple_GET_ITEM(keywords, k);
      const std::size_t i = position_of(name);
      if (i == N) fail("got an unexpected keyword argument '%U'", name);
      if (values[i] != nullptr) fail("got multiple values for argument '%U'", name);
      values[i] = args[given + static_cast<std::size_t>(k)];
    }
    for (std::size_t i = 0; i < required_; ++i) {
      if (values[i] == nullptr) fail("missing required argument: '%U'", names_[i]);
    }
    return values;
  }

 private:
  std::size_t position_of(PyObject* name) const {
    for (std::size_t i = 0; i < N; ++i) {
      if (names_[i] == name) return i;
    }
    for (std::size_t i = 0; i < N; ++i) {
      if (PyUnicode_Compare(names_[i], name) == 0) return i;
    }
    return N;
  }

  template <class... Args>
  [[noreturn]] void fail(const char* format, Args... args) const {
    PyErr_Format(PyExc_TypeError, (std::string(method_) + "() " + format).c_str(), args...);
    throw pybind11::error_already_set();
  }

  const char* method_;
  std::size_t required_;
  std::array<PyObject*, N> names_;
};

/// The C++ object of `self`. The interpreter has checked its type.
template <class T>
T& self_of(PyObject* self) {
  const auto* instance = reinterpret_cast<pybind11::detail::instance*>(self);
  if (!instance->simple_layout) return pybind11::handle(self).cast<T&>();
  if (instance->simple_value_holder[0] == nullptr) {
    PyErr_Format(PyExc_TypeError, "%s.__init__() was not called", Py_TYPE(self)->tp_name);
    throw pybind11::error_already_set();
  }
  return *static_cast<T*>(instance->simple_value_holder[0]);
}

/// A new Python object that holds `made`, which no other Python object may hold. Unlike `cast` it
/// neither searches pybind11's table of instances nor enters the object there.
template <class T>
pybind11::object wrapped(std::shared_ptr<T> made) {
  static auto* const type = reinterpret_cast<PyTypeObject*>(pybind11::type::of<T>().ptr());
  auto object =
      pybind11::reinterpret_steal<pybind11::object>(pybind11::detail::make_new_instance(type));
  auto* const instance = reinterpret_cast<pybind11::detail::instance*>(object.ptr());
  if (!instance->simple_layout) return pybind11::cast(std::move(made));
  instance->simple_value_holder[0] = made.get();
  new (&instance->simple_value_holder[1]) std::shared_ptr<T>(std::move(made));
  instance->owned = true;
  instance->simple_holder_constructed = true;
  return object;
}

/// Entry point for the interpreter; turns every C++ exception into a Python error.
template <auto kMethod>
PyObject* fast_call(PyObject* self, PyObject* const* args, Py_ssize_t num_args,
                    PyObject* keywords) noexcept {
  try {
    return kMethod(self, args, num_args, keywords).release().ptr();
  } catch (const abi::__forced_unwind&) {
    park_thread();
  } catch (...) {
    pybind11::detail::try_translate_exceptions();
    return nullptr;
  }
}

/// Adds a method to a type.
///
/// @param signature  `name(self, ...)` followed by `\n--\n\n`, which `inspect` parses.
template <auto kMethod>
void add_fast(pybind11::handle type, const char* name, const char* signature) {
  // Static: the descriptor keeps a pointer to it.
  static PyMethodDef method{
      name, reinterpret_cast<PyCFunction>(reinterpret_cast<void (*)()>(&fast_call<kMethod>)),
      METH_FASTCALL | METH_KEYWORDS, signature};
  const auto descriptor = pybind11::reinterpret_steal<pybind11::object>(
      PyDescr_NewMethod(reinterpret_cast<PyTypeObject*>(type.ptr()), &method));
  if (!descriptor) throw pybind11::error_already_set();
  type.attr(name) = descriptor;
}

}  // namespace flowtrain::bindings
