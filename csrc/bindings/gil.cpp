#include "bindings/gil.hpp"

#include <cxxabi.h>
#include <unistd.h>

#include "base/error.hpp"

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
  if (ended_) return true;
  const auto now = std::chrono::steady_clock::now();
  if (now < next_) return false;
  next_ = now + kPeriod;
  ended_ = check();
  return ended_;
}

bool SignalCheck::check() {
  try {
    const py::gil_scoped_acquire acquire;
    if (PyErr_CheckSignals() != 0) return true;
    if (::getpid() == process_) return false;
    throw PoolClosed(
        "a signal handler forked this process during a call of its parent: open the "
        "pool again in the child");
  } catch (const abi::__forced_unwind&) {
    park_thread();
  } catch (const Error&) {
    const py::gil_scoped_acquire acquire;
    py::detail::try_translate_exceptions();
    return true;
  }
}

}  // namespace flowtrain::bindings
