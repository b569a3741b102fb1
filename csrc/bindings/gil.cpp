#include "bindings/gil.hpp"

#include <cxxabi.h>
#include <unistd.h>

namespace py = pybind11;

namespace flowtrain::bindings {

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
