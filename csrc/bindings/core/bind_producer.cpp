#include <pybind11/stl.h>

#include <memory>
#include <string>
#include <string_view>

#include "base/error.hpp"
#include "bindings/core/arguments.hpp"
#include "bindings/core/array_protocols.hpp"
#include "bindings/core/bindings.hpp"
#include "bindings/core/fast_call.hpp"
#include "bindings/core/port.hpp"
#include "channel/producer.hpp"
#include "memory/copy.hpp"

namespace py = pybind11;

namespace flowtrain::bindings {
namespace {

using channel::Lease;
using channel::Pool;
using channel::Producer;

py::object lease(PyObject* self, PyObject* const* args, Py_ssize_t num_args, PyObject* keywords) {
  static const Parameters<3> parameters("lease", {"shape", "dtype", "timeout_s"}, 2);
  const auto [shape, dtype, timeout_s] = parameters.bind(args, num_args, keywords);
  Producer& producer = self_of<Producer>(self);
  const auto layout = layout_of(shape, dtype_of(py::reinterpret_borrow<py::object>(dtype)));
  const double max_s = timeout_of(timeout_s);
  // A free slab is taken without releasing the GIL.
  std::shared_ptr<Lease> out =
      call_at_once(producer.pool(), [&] { return producer.try_lease(layout); });
  if (!out) {
    const WithoutGil release;
    out = producer.lease(layout, Deadline::in(max_s), SignalCheck());
  }
  if (!out) throw py::error_already_set();
  return wrapped(std::move(out));
}

py::object publish(PyObject* self, PyObject* const* args, Py_ssize_t num_args, PyObject* keywords) {
  static const Parameters<2> parameters("publish", {"key", "stream"}, 1);
  const auto [key, stream] = parameters.bind(args, num_args, keywords);
  self_of<Lease>(self).publish(key_of(key), stream_of(stream));
  return py::none();
}

void publish_many(Producer& producer, const std::vector<std::shared_ptr<Lease>>& leases,
                  const std::vector<py::object>& keys, const py::object& stream) {
  std::vector<channel::Key> out;
  out.reserve(keys.size());
  for (const py::object& key : keys) out.push_back(key_of(key.ptr()));
  producer.publish_many(leases, out, stream_of(stream.ptr()));
}

void drain(Producer& producer, const py::object& timeout_s) {
  const double max_s = timeout_of(timeout_s.ptr());
  bool done = false;
  {
    const WithoutGil release;
    done = producer.drain(Deadline::in(max_s), SignalCheck());
  }
  if (!done) throw py::error_already_set();
}

std::shared_ptr<Producer> make_producer(std::shared_ptr<Pool> pool, const std::string& ring,
                                        const py::object& segment, const py::object& max_bytes,
                                        const py::object& max_items, const std::string& when_full,
                                        bool strict) {
  if (when_full != "block" && when_full != "fail") {
    throw BadArgument("producer: when_full='" + when_full + "' must be 'block' or 'fail'");
  }
  const auto limit = [](const py::object& given, const char* what) {
    return given.is_none() ? INT64_MAX : number_in(given, what, 1, INT64_MAX);
  };
  const Producer::Credits credits{
      limit(max_bytes, "producer: max_bytes"), limit(max_items, "producer: max_items"),
      when_full == "fail" ? channel::WhenFull::kFail : channel::WhenFull::kBlock, strict};
  channel::Tiers tiers = std::nullopt;
  const auto add = [&](py::handle number) {
    tiers.segments.push_back(static_cast<std::uint32_t>(
        number_in(number, "producer: segment", 1, channel::kMaxSegments)));
  };
  if (PyIndex_Check(segment.ptr()) != 0) {
    add(segment);
  } else if (!segment.is_none()) {
    for (const py::handle number : segment) add(number);
    if (tiers.segments.empty()) {
      throw BadArgument("producer: segment=[]: name one at least, or give None for any");
    }
  }
  return std::make_shared<Producer>(std::move(pool), ring, tiers, credits);
}

py::object optional_limit(std::int64_t limit) {
  return limit == INT64_MAX ? py::object(py::none()) : py::int_(limit);
}

py::dict producer_facts(Producer& producer) {
  py::dict out = port_facts(producer);
  const Producer::Credits& credits = producer.credits();
  const Producer::Usage usage = producer.usage();
  out["tiers"] = producer.tiers();
  out["max_items"] = optional_limit(credits.max_items);
  out["max_bytes"] = optional_limit(credits.max_bytes);
  out["when_full"] = credits.when_full == channel::WhenFull::kFail ? "fail" : "block";
  out["strict"] = credits.strict;
  out["in_flight_items"] = usage.items_in_flight;
  out["in_flight_bytes"] = usage.bytes_in_flight;
  out["timed_bytes"] = usage.written.bytes;
  out["timed_ns"] = usage.written.ns;
  out["spilled_items"] = usage.spilled.items;
  out["spilled_bytes"] = usage.spilled.bytes;
  return out;
}

bool try_buffer(const py::object& source, Py_buffer& view, int flags) {
  if (PyObject_GetBuffer(source.ptr(), &view, flags) == 0) return true;
  // Numpy raises ValueError where the protocol wants a BufferError.
  const bool refused = PyErr_ExceptionMatches(PyExc_BufferError) != 0 ||
                       PyErr_ExceptionMatches(PyExc_ValueError) != 0;
  if (!refused) throw py::error_already_set();
  return false;
}

/// Gets the C-contiguous bytes of an object, with their format if it has one: numpy's datetime64
/// has none.
///
/// Errors: BufferError if they are not contiguous, TypeError without any; what the object raises.
void get_bytes(const py::object& source, Py_buffer& view) {
  if (PyObject_CheckBuffer(source.ptr()) == 0) {
    throw py::type_error("write: a '" + std::string(Py_TYPE(source.ptr())->tp_name) +
                         "' has no bytes to read; write a bytes-like object, or copy a tensor: "
                         "torch.from_dlpack(lease).copy_(tensor)");
  }
  if (try_buffer(source, view, PyBUF_CONTIG_RO | PyBUF_FORMAT)) return;
  PyErr_Clear();
  if (try_buffer(source, view, PyBUF_CONTIG_RO)) return;
  const py::error_already_set refusal;
  if (!try_buffer(source, view, PyBUF_STRIDED_RO)) {
    PyErr_Clear();
    throw refusal;
  }
  PyBuffer_Release(&view);
  throw py::buffer_error("write: the source, of type '" +
                         std::string(Py_TYPE(source.ptr())->tp_name) +
                         "', is not C-contiguous; write numpy.ascontiguousarray(source)");
}

/// Whether a format of the buffer protocol has Python objects or pointers, which no other process
/// can use.
bool has_pointers(std::string_view format) {
  bool in_name = false;  // That of a field is between colons.
  for (const char c : format) {
    if (c == ':') in_name = !in_name;
    if (!in_name && std::string_view("O&PX").find(c) != std::string_view::npos) return true;
  }
  return false;
}

/// Copies an object with the buffer protocol into a slab, without the GIL.
void write(Lease& lease, const py::object& source) {
  Py_buffer view;
  get_bytes(source, view);
  const std::unique_ptr<Py_buffer, decltype(&PyBuffer_Release)> held(&view, &PyBuffer_Release);
  if (view.format != nullptr && has_pointers(view.format)) {
    throw py::type_error("write: the source, of format '" + std::string(view.format) +
                         "', has pointers to objects of this process; write values, such as those "
                         "of source.astype(dtype)");
  }
  lease.pool().check_not_forked();
  if (!lease.open()) {
    throw PoolClosed("write: the lease was published or aborted already; lease another slab");
  }
  const auto bytes = static_cast<std::uint64_t>(view.len);
  if (bytes != lease.layout().bytes) {
    throw BadArgument("write: the source has " + std::to_string(bytes) + " bytes and the lease " +
                      std::to_string(lease.layout().bytes) + "; lease the size of the source");
  }
  check_on_host(device_of(lease.slab()), "write");
  const Lease::Writing writing(lease);
  const WithoutGil release;
  memory::copy(lease.data(), static_cast<const std::byte*>(view.buf), bytes);
}

}  // namespace

void bind_producer(py::module_& module) {
  py::class_<Lease, std::shared_ptr<Lease>> lease_type(module, "Lease", buffer_slots<Lease>());
  add_dlpack(lease_type);
  add_array(lease_type);
  add_fast<&publish>(lease_type, "publish", "publish($self, /, key, stream=None)\n--\n\n");
  lease_type.def("write", &write, py::arg("source"))
      .def(
          "shrink",
          [](Lease& self, const py::object& shape) {
            self.shrink(layout_of(shape.ptr(), self.layout().dtype));
          },
          py::arg("shape"))
      .def(
          "abort",
          [](Lease& self, const py::object& stream) { self.abort(stream_of(stream.ptr())); },
          py::arg("stream") = py::none())
      .def_property_readonly("shape",
                             [](const Lease& self) {
                               return shape_tuple(self.layout().shape.data(), self.layout().ndim);
                             })
      .def_property_readonly("dtype",
                             [](const Lease& self) { return dtype_name(self.layout().dtype); })
      .def_property_readonly("nbytes", [](const Lease& self) { return self.layout().bytes; })
      .def_property_readonly("address", &Lease::address);

  py::class_<Producer, std::shared_ptr<Producer>> producer_type(module, "Producer");
  producer_type
      .def(py::init(&make_producer), py::arg("pool").none(false), py::arg("ring") = "default",
           py::kw_only(), py::arg("segment") = py::none(), py::arg("max_bytes") = py::none(),
           py::arg("max_items") = py::none(), py::arg("when_full") = "block",
           py::arg("strict") = false)
      .def("explain", &explain<&producer_facts, Producer>, py::kw_only(),
           py::arg("measure") = false)
      .def("publish_many", &publish_many, py::arg("leases"), py::arg("keys"),
           py::arg("stream") = py::none())
      .def("drain", &drain, py::arg("timeout_s") = py::none());
  add_fast<&lease>(producer_type, "lease", "lease($self, /, shape, dtype, timeout_s=None)\n--\n\n");
  add_close(producer_type);
}

}  // namespace flowtrain::bindings
