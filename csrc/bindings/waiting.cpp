#include <cxxabi.h>
#include <unistd.h>

#include "base/error.hpp"
#include "bindings/bindings.hpp"

namespace py = pybind11;

namespace flowtrain::bindings {

double checked_timeout(double timeout_s) {
  if (!(timeout_s >= 0)) {
    throw BadArgument("timeout_s=" + std::to_string(timeout_s) + ": must be at least 0");
  }
  return timeout_s;
}

Deadline deadline_in(double timeout_s) { return Deadline::in(checked_timeout(timeout_s)); }

std::int64_t number_in(py::handle given, const char* what, std::int64_t least,
                       std::int64_t largest) {
  const auto number = py::reinterpret_steal<py::int_>(PyNumber_Index(given.ptr()));
  if (!number) throw py::error_already_set();
  int overflow = 0;
  const std::int64_t value = PyLong_AsLongLongAndOverflow(number.ptr(), &overflow);
  if (overflow == 0 && value >= least && value <= largest) return value;
  std::string text = std::string(what) + "=" + std::string(py::str(number)) + " must be ";
  text += largest == INT64_MAX ? "at least " + std::to_string(least)
                               : std::to_string(least) + " to " + std::to_string(largest);
  if (overflow > 0) text += ", and below 2**63";
  throw BadArgument(text);
}

void park_thread() noexcept {
  for (;;) ::pause();
}

WithoutGil::~WithoutGil() {
  try {
    PyEval_RestoreThread(state_);
  } catch (const abi::__forced_unwind&) {
    park_thread();
  }
}

bool SignalCheck::operator()() {
  const auto now = std::chrono::steady_clock::now();
  if (now < next_) return false;
  next_ = now + kPeriod;
  try {
    const py::gil_scoped_acquire acquire;
    return PyErr_CheckSignals() != 0;
  } catch (const abi::__forced_unwind&) {
    park_thread();
  }
}

}  // namespace flowtrain::bindings
