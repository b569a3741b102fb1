#include "bindings/core/arguments.hpp"

#include <cstring>

#include "base/error.hpp"
#include "channel/layout/dtype.hpp"
#include "memory/address.hpp"

namespace py = pybind11;

namespace flowtrain::bindings {
namespace {

/// Size of a dimension. Errors: BadArgument outside of 0 to 2^32 - 1.
std::int64_t dim_of(PyObject* given) {
  const std::int64_t size = PyLong_AsLongLong(given);
  if (size == -1 && PyErr_Occurred() != nullptr) {
    if (PyErr_ExceptionMatches(PyExc_OverflowError) == 0) throw py::error_already_set();
    PyErr_Clear();
  } else if (size >= 0 && size <= UINT32_MAX) {
    return size;
  }
  throw BadArgument("shape: dimension " + std::string(py::str(given)) + " must be 0 to 4294967295");
}

}  // namespace

std::uint8_t dtype_of(const py::object& given) {
  py::object text = given;
  bool native = true;
  if (!py::isinstance<py::str>(given)) {
    if (py::hasattr(given, "name")) {
      text = given.attr("name");
      native = py::bool_(py::getattr(given, "isnative", py::bool_(true)));
    } else if (py::isinstance<py::type>(given)) {
      text = given.attr("__name__");
    } else {
      text = py::str(given);
    }
  }
  Py_ssize_t size = 0;
  const bool named = py::isinstance<py::str>(text);
  const char* utf8 = named ? PyUnicode_AsUTF8AndSize(text.ptr(), &size) : nullptr;
  if (utf8 == nullptr) PyErr_Clear();
  std::string_view name(utf8 == nullptr ? "" : utf8, static_cast<std::size_t>(size));
  if (name.starts_with("torch.")) name.remove_prefix(6);
  const auto shown = [&] {
    return "dtype " + (name.empty() ? std::string(py::repr(given)) : "'" + std::string(name) + "'");
  };
  // A numpy dtype has the same name in either order of bytes.
  if (!native) {
    throw BadArgument(shown() + ": its bytes are not in this machine's order; convert the array " +
                      "with astype(dtype.newbyteorder('='))");
  }
  if (const auto number = channel::dtype_number(name)) return *number;
  std::string known;
  for (const channel::Dtype& dtype : channel::kDtypes) {
    if (!known.empty()) known += ", ";
    known += dtype.name;
  }
  throw BadArgument(shown() + ": not one that items have; choose from " + known);
}

double checked_timeout(double timeout_s) {
  if (!(timeout_s >= 0)) {
    throw BadArgument("timeout_s=" + std::to_string(timeout_s) + ": must be at least 0");
  }
  return timeout_s;
}

Deadline deadline_in(double timeout_s) { return Deadline::in(checked_timeout(timeout_s)); }

std::int64_t number_in(py::handle given, const char* what, std::int64_t min, std::int64_t max) {
  const auto number = py::reinterpret_steal<py::int_>(PyNumber_Index(given.ptr()));
  if (!number) throw py::error_already_set();
  int overflow = 0;
  const std::int64_t value = PyLong_AsLongLongAndOverflow(number.ptr(), &overflow);
  if (overflow == 0 && value >= min && value <= max) return value;
  std::string text = std::string(what) + "=" + std::string(py::str(number)) + " must be ";
  text += max == INT64_MAX ? "at least " + std::to_string(min)
                           : std::to_string(min) + " to " + std::to_string(max);
  if (overflow > 0) text += ", and below 2**63";
  throw BadArgument(text);
}

channel::Layout layout_of(PyObject* shape, std::uint8_t dtype) {
  if (Py_TYPE(shape)->tp_iter == nullptr && PySequence_Check(shape) == 0) {
    throw py::type_error("shape must be a sequence of integers");
  }
  // A tuple, since the `__index__` of a dimension may change a list.
  const auto dims = py::reinterpret_steal<py::object>(PySequence_Tuple(shape));
  if (!dims) throw py::error_already_set();
  const Py_ssize_t ndim = PyTuple_GET_SIZE(dims.ptr());
  channel::Layout layout{dtype, 0, {}, 0};
  if (ndim > channel::kMaxDims) {
    throw BadArgument("shape of " + std::to_string(ndim) + " dimensions: at most " +
                      std::to_string(channel::kMaxDims) + "; reshape it");
  }
  for (Py_ssize_t i = 0; i < ndim; ++i) {
    const std::int64_t size = dim_of(PyTuple_GET_ITEM(dims.ptr(), i));
    layout.shape[layout.ndim++] = static_cast<std::uint32_t>(size);
  }
  const auto bytes = channel::array_bytes(layout.dtype, {layout.shape.data(), layout.ndim});
  if (!bytes) {
    throw BadArgument("shape: more than " + std::to_string(memory::kMaxSegmentBytes) +
                      " bytes; cut the item into several");
  }
  layout.bytes = *bytes;
  return layout;
}

channel::Key key_of(PyObject* given) {
  const auto key = py::reinterpret_steal<py::int_>(PyNumber_Index(given));
  if (!key) throw py::error_already_set();
  const auto low = PyLong_AsUnsignedLongLong(key.ptr());
  if (low != UINT64_MAX || PyErr_Occurred() == nullptr) return {low, 0};
  PyErr_Clear();
  try {
    const py::bytes bytes = key.attr("to_bytes")(16, "little");
    channel::Key out{};
    std::memcpy(&out, std::string_view(bytes).data(), sizeof(out));
    return out;
  } catch (const py::error_already_set&) {
    throw BadArgument("key=" + std::string(py::str(key)) + ": must be 0 to 2**128 - 1");
  }
}

double timeout_of(PyObject* given) {
  if (given == nullptr || given == Py_None) return kDefaultTimeoutS;
  const double timeout_s = PyFloat_AsDouble(given);
  if (timeout_s == -1.0 && PyErr_Occurred() != nullptr) throw py::error_already_set();
  return checked_timeout(timeout_s);
}

std::optional<memory::StreamHandle> stream_of(PyObject* given) {
  if (given == nullptr || given == Py_None) return std::nullopt;
  return static_cast<memory::StreamHandle>(number_in(given, "stream", -1, INT64_MAX));
}

memory::StreamHandle dlpack_stream_of(PyObject* given) {
  constexpr memory::StreamHandle kLegacyDefault = 1;
  return stream_of(given).value_or(kLegacyDefault);
}

py::object key_object(const channel::Descriptor& d) {
  if (d.key_high == 0) return py::int_(d.key_low);
  return py::int_(d.key_high).attr("__lshift__")(64).attr("__or__")(py::int_(d.key_low));
}

py::tuple shape_tuple(const std::uint32_t* shape, int ndim) {
  py::tuple out(ndim);
  for (int i = 0; i < ndim; ++i) out[i] = shape[i];
  return out;
}

py::str dtype_name(std::uint8_t dtype) { return std::string(channel::kDtypes[dtype].name); }

}  // namespace flowtrain::bindings
