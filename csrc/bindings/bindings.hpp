#pragma once

#include <pybind11/pybind11.h>

#include <chrono>

#include "base/deadline.hpp"

namespace flowtrain::bindings {

void bind_errors(pybind11::module_& module);
void bind_pool(pybind11::module_& module);
void bind_channel(pybind11::module_& module);

/// Deadline of a `timeout_s` from Python.
///
/// Errors: BadArgument for what is negative or no number.
Deadline deadline_in(double timeout_s);

/// Lets Ctrl-C end a wait; asked from loops that do not hold the GIL. Once it said true, a Python
/// error is set.
class SignalCheck {
 public:
  bool operator()();

 private:
  static constexpr auto kPeriod = std::chrono::milliseconds(50);
  std::chrono::steady_clock::time_point next_ = std::chrono::steady_clock::now() + kPeriod;
};

}  // namespace flowtrain::bindings
