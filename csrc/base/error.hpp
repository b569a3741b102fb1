#pragma once

#include <stdexcept>
#include <string>

namespace flowtrain {

/// Errors of the control path. The bindings make a Python exception of the same name of each entry.
///
/// Columns: name, second Python base besides FlowTrainError.
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
  X(ViewRefused, PyExc_BufferError)        \
  X(SystemCallError, PyExc_OSError)        \
  X(MemoryUnreachable, PyExc_RuntimeError) \
  X(CudaError, PyExc_RuntimeError)         \
  X(UcxError, PyExc_RuntimeError)

/// Base of every error that the core raises; in Python, of every error of FlowTrain.
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

/// Throws SystemCallError: the operation and its object, then errno in words.
[[noreturn]] void throw_errno(const std::string& what);

/// An invalid argument; becomes ValueError in Python.
using BadArgument = std::invalid_argument;

}  // namespace flowtrain
