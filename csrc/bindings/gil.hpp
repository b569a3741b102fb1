#pragma once

#include <pybind11/pybind11.h>
#include <unistd.h>

#include <chrono>

namespace flowtrain::bindings {

/// Parks a thread that Python unwinds because the interpreter ends: it may neither go on nor end.
[[noreturn]] void park_thread() noexcept;

/// Releases the GIL during its lifetime. Use it instead of pybind11's gil_scoped_release, which
/// fails while the interpreter ends: Python 3.11 to 3.13 then unwind the stack of a daemon thread,
/// and C++ terminates the process at the first noexcept destructor. This class parks the thread, as
/// Python 3.14 itself does.
class WithoutGil {
 public:
  WithoutGil() : state_(PyEval_SaveThread()) {}
  ~WithoutGil();
  WithoutGil(const WithoutGil&) = delete;
  WithoutGil& operator=(const WithoutGil&) = delete;

 private:
  PyThreadState* state_;
};

/// Lets Ctrl-C end a wait, and ends it in a child that a signal handler has forked: the call is its
/// parent's. Called from loops without the GIL; once it has returned true, a Python error is set,
/// and all further calls return true: one Ctrl-C ends all waits of a call.
class SignalCheck {
 public:
  bool operator()();

 private:
  bool check();

  static constexpr auto kPeriod = std::chrono::milliseconds(50);
  bool ended_ = false;
  pid_t process_ = ::getpid();
  std::chrono::steady_clock::time_point next_ = std::chrono::steady_clock::now() + kPeriod;
};

}  // namespace flowtrain::bindings
