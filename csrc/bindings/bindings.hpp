#pragma once

#include <pybind11/pybind11.h>

#include <chrono>

#include "base/deadline.hpp"
#include "channel/layout/control.hpp"

namespace flowtrain::bindings {

void bind_errors(pybind11::module_& module);
void bind_pool(pybind11::module_& module);
void bind_channel(pybind11::module_& module);
void bind_inspect(pybind11::module_& module);
void bind_cuda(pybind11::module_& module);
void bind_packing(pybind11::module_& module);
void bind_measure(pybind11::module_& module);
void bind_torture(pybind11::module_& module);

/// Makes the classes of a module raise where pybind11 would go on without an object: in a call on
/// one whose `__init__` never ran, and in a pickle.
void guard_classes(pybind11::module_& module);

const char* role_name(channel::LaneRole role);
const char* state_name(channel::LaneState state);

/// Deadline of a `timeout_s` from Python.
///
/// Errors: BadArgument for what is negative or no number.
Deadline deadline_in(double timeout_s);
/// The check alone, for calls that may be done before they have to wait.
double checked_timeout(double timeout_s);

/// A whole number from Python, which pybind11 refuses without a word on its range.
///
/// @param what  Parameter that is named.
/// Errors: BadArgument outside of the range; TypeError for what is no whole number.
std::int64_t number_in(pybind11::handle given, const char* what, std::int64_t least,
                       std::int64_t largest);

/// For a thread that Python unwinds since the interpreter ends: it may not go on, nor end.
[[noreturn]] void park_thread() noexcept;

/// Gives up the GIL while one lives. To be used instead of pybind11's, whose end must not come
/// while the interpreter ends: Python 3.11 to 3.13 then end a daemon thread by unwinding its stack,
/// and C++ ends the process at the first destructor that would let it through. This one parks the
/// thread, as Python 3.14 does itself.
class WithoutGil {
 public:
  WithoutGil() : state_(PyEval_SaveThread()) {}
  ~WithoutGil();
  WithoutGil(const WithoutGil&) = delete;
  WithoutGil& operator=(const WithoutGil&) = delete;

 private:
  PyThreadState* state_;
};

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
