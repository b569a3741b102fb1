#pragma once

#include <stdexcept>
#include <string>

namespace flowtrain {

/// Kinds of failure of the control path. This list is the only one: the bindings turn each
/// entry into a Python exception of the same name.
///
/// Columns: name, second Python base next to FlowTrainError.
#define FLOWTRAIN_ERRORS(X)                \
  X(PoolTimeout, PyExc_TimeoutError)       \
  X(PoolFull, PyExc_RuntimeError)          \
  X(PoolClosed, PyExc_ValueError)          \
  X(PoolExists, PyExc_FileExistsError)     \
  X(PoolNotFound, PyExc_FileNotFoundError) \
  X(PoolSpace, PyExc_MemoryError)          \
  X(PoolCorrupt, PyExc_RuntimeError)       \
  X(StaleAddress, PyExc_LookupError)       \
  X(ViewsAlive, PyExc_BufferError)         \
  X(SystemCallError, PyExc_OSError)        \
  X(CudaError, PyExc_RuntimeError)

/// Base of every error that the core raises.
class Error : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

#define FLOWTRAIN_DECLARE_ERROR(name, base) \
  class name : public Error {               \
   public:                                  \
    using Error::Error;                     \
  };
FLOWTRAIN_ERRORS(FLOWTRAIN_DECLARE_ERROR)
#undef FLOWTRAIN_DECLARE_ERROR

/// A system call failed: what was done to what, and errno in words.
[[noreturn]] void throw_errno(const std::string& what);

/// The caller passed something that cannot be; becomes ValueError in Python.
using BadArgument = std::invalid_argument;

}  // namespace flowtrain
