#pragma once

#include <pybind11/pybind11.h>

#include <cstdint>
#include <optional>

#include "base/deadline.hpp"
#include "channel/layout/descriptor.hpp"
#include "channel/producer.hpp"

namespace flowtrain::bindings {

/// Arguments of Python calls as the core takes them, and the reverse.

inline constexpr double kDefaultTimeoutS = 60.0;

/// Deadline of a `timeout_s`.
///
/// Errors: BadArgument if it is negative or not a number.
Deadline deadline_in(double timeout_s);

/// The check of deadline_in alone, for calls that start the clock only if they have to wait.
double checked_timeout(double timeout_s);

/// Checked `timeout_s` of a fast call, or the default if it is null or None.
double timeout_of(PyObject* given);

/// An integer in a range; pybind11's own error does not name the range.
///
/// @param what  Parameter that the message names.
/// Errors: BadArgument outside of the range; TypeError if it is not an integer.
std::int64_t number_in(pybind11::handle given, const char* what, std::int64_t min,
                       std::int64_t max);

/// Number of a dtype given by name, as a numpy dtype or type, or as a torch dtype.
///
/// Errors: BadArgument.
std::uint8_t dtype_of(const pybind11::object& given);

/// Shape and dtype of an item.
///
/// Errors: BadArgument, TypeError.
channel::Layout layout_of(PyObject* shape, std::uint8_t dtype);

/// Errors: BadArgument outside of 0 to 2^128 - 1; TypeError if it is not an integer.
channel::Key key_of(PyObject* given);

/// A `stream`: the handle of the driver, or -1 for the host; nothing if it is null or None.
///
/// Errors: BadArgument, TypeError.
std::optional<memory::StreamHandle> stream_of(PyObject* given);
/// A `stream` of DLPack, whose None is CUDA's legacy default stream.
memory::StreamHandle dlpack_stream_of(PyObject* given);

pybind11::object key_object(const channel::Descriptor& descriptor);
pybind11::tuple shape_tuple(const std::uint32_t* shape, int ndim);
pybind11::str dtype_name(std::uint8_t dtype);

}  // namespace flowtrain::bindings
