#include <pybind11/stl.h>

#include <algorithm>
#include <cstring>
#include <memory>

#include "base/error.hpp"
#include "bindings/bindings.hpp"
#include "bindings/dlpack.hpp"
#include "bindings/fast_call.hpp"
#include "bindings/views.hpp"
#include "channel/consumer.hpp"
#include "channel/layout/dtype.hpp"
#include "channel/telemetry/inspect.hpp"
#include "channel/producer.hpp"
#include "memory/copy.hpp"

namespace py = pybind11;

namespace flowtrain::bindings {
namespace {

using channel::Consumer;
using channel::Item;
using channel::Lease;
using channel::Pool;
using channel::Producer;

constexpr double kDefaultTimeoutS = 60.0;

/// Number of a dtype given by name, as a numpy dtype or type, or as a torch dtype.
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

/// A dimension, or what cannot be one.
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

channel::Layout layout_of(PyObject* shape, const py::object& dtype) {
  const auto dims = py::reinterpret_steal<py::object>(
      PySequence_Fast(shape, "shape must be a sequence of integers"));
  if (!dims) throw py::error_already_set();
  const Py_ssize_t ndim = PySequence_Fast_GET_SIZE(dims.ptr());
  channel::Layout layout{dtype_of(dtype), 0, {}, 0};
  if (ndim > channel::kMaxDims) {
    throw BadArgument("shape of " + std::to_string(ndim) + " dimensions: at most " +
                      std::to_string(channel::kMaxDims) + "; reshape it");
  }
  for (Py_ssize_t i = 0; i < ndim; ++i) {
    const std::int64_t size = dim_of(PySequence_Fast_GET_ITEM(dims.ptr(), i));
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

/// Seconds that may be waited.
double timeout_of(PyObject* given) {
  if (given == nullptr || given == Py_None) return kDefaultTimeoutS;
  const double timeout_s = PyFloat_AsDouble(given);
  if (timeout_s == -1.0 && PyErr_Occurred() != nullptr) throw py::error_already_set();
  return checked_timeout(timeout_s);
}

/// Makes a call that never waits for a peer. One that may map memory gives up the GIL: a device can
/// take seconds to register it.
template <class Call>
auto make_at_once(Pool& pool, Call call) {
  if (!pool.segments().has_unmapped()) return call();
  const WithoutGil release;
  return call();
}

/// Whether there is something at once, where nobody else wants the GIL meanwhile: to give it up and
/// get it back takes a tenth of a hand-off, but a thread that has to wait for it falls asleep.
bool some_at_once(const Consumer& consumer, double longest_s) {
  constexpr double kAtOnceS = 5e-6;
  const bool alone =
      PyThreadState_Next(PyInterpreterState_ThreadHead(PyInterpreterState_Get())) == nullptr;
  return alone && consumer.spin_until(Deadline::in(std::min(longest_s, kAtOnceS)));
}

std::shared_ptr<Item> try_get(Consumer& consumer) {
  return make_at_once(consumer.pool(), [&] { return consumer.try_get(); });
}

std::vector<std::shared_ptr<Item>> try_get_many(Consumer& consumer, std::size_t max_items) {
  return make_at_once(consumer.pool(), [&] { return consumer.try_get_many(max_items); });
}

py::object lease(PyObject* self, PyObject* const* args, Py_ssize_t num_args, PyObject* keywords) {
  static const Parameters<3> parameters("lease", {"shape", "dtype", "timeout_s"}, 2);
  const auto [shape, dtype, timeout_s] = parameters.bind(args, num_args, keywords);
  Producer& producer = self_of<Producer>(self);
  const auto layout = layout_of(shape, py::reinterpret_borrow<py::object>(dtype));
  const double longest_s = timeout_of(timeout_s);
  // What is free already is taken without giving up the GIL.
  std::shared_ptr<Lease> out =
      make_at_once(producer.pool(), [&] { return producer.try_lease(layout); });
  if (!out) {
    const WithoutGil release;
    out = producer.lease(layout, Deadline::in(longest_s), SignalCheck());
  }
  if (!out) throw py::error_already_set();
  return wrapped(std::move(out));
}

py::object publish(PyObject* self, PyObject* const* args, Py_ssize_t num_args, PyObject* keywords) {
  static const Parameters<1> parameters("publish", {"key"}, 1);
  const auto [key] = parameters.bind(args, num_args, keywords);
  self_of<Lease>(self).publish(key_of(key));
  return py::none();
}

py::object release(PyObject* self, PyObject* const* args, Py_ssize_t num_args, PyObject* keywords) {
  static const Parameters<0> parameters("release", {}, 0);
  parameters.bind(args, num_args, keywords);
  self_of<Item>(self).release();
  return py::none();
}

void publish_many(Producer& producer, const std::vector<std::shared_ptr<Lease>>& leases,
                  const std::vector<py::object>& keys) {
  std::vector<channel::Key> out;
  out.reserve(keys.size());
  for (const py::object& key : keys) out.push_back(key_of(key.ptr()));
  producer.publish_many(leases, out);
}

py::list get_many(Consumer& consumer, const py::object& at_most, std::optional<double> timeout_s) {
  const auto max_items =
      static_cast<std::size_t>(number_in(at_most, "get_many: max_items", 1, INT64_MAX));
  const double longest_s = checked_timeout(timeout_s.value_or(kDefaultTimeoutS));
  std::vector<std::shared_ptr<Item>> out = try_get_many(consumer, max_items);
  if (out.empty() && some_at_once(consumer, longest_s)) out = try_get_many(consumer, max_items);
  if (out.empty()) {
    const WithoutGil release;
    out = consumer.get_many(max_items, Deadline::in(longest_s), SignalCheck());
  }
  if (out.empty()) throw py::error_already_set();
  py::list items(out.size());
  for (std::size_t i = 0; i < out.size(); ++i) items[i] = wrapped(std::move(out[i]));
  return items;
}

py::object get(PyObject* self, PyObject* const* args, Py_ssize_t num_args, PyObject* keywords) {
  static const Parameters<1> parameters("get", {"timeout_s"}, 0);
  const auto [timeout_s] = parameters.bind(args, num_args, keywords);
  Consumer& consumer = self_of<Consumer>(self);
  const double longest_s = timeout_of(timeout_s);
  // What is there already, or at once, is taken without giving up the GIL.
  std::shared_ptr<Item> out = try_get(consumer);
  if (!out && some_at_once(consumer, longest_s)) out = try_get(consumer);
  if (!out) {
    const WithoutGil release;
    out = consumer.get(Deadline::in(longest_s), SignalCheck());
  }
  if (!out) throw py::error_already_set();
  return wrapped(std::move(out));
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

/// What flowtrain_core.edges.explain makes an explanation of; it knows what is said of an edge.
template <class Port>
py::dict port_facts(const Port& port) {
  Pool& pool = port.pool();
  pool.check_open();
  py::list segments;
  for (const channel::SegmentInfo& info : segment_infos(pool.control())) {
    const channel::Segments::Held held = pool.segments().held(info.id);
    py::dict entry;
    entry["id"] = info.id;
    entry["owner"] = info.owner;
    entry["bytes"] = info.bytes;
    entry["in_use_bytes"] = info.bytes_in_use;
    entry["mapped"] = held.mapped;
    entry["registered"] = held.attached;
    segments.append(std::move(entry));
  }
  py::dict out;
  out["pool"] = pool.name();
  out["ring"] = pool.control().ring_name(port.ring());
  out["label"] = pool.label();
  out["lane"] = port.lane();
  out["segments"] = std::move(segments);
  return out;
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

py::dict consumer_facts(const Consumer& consumer) {
  py::dict out = port_facts(consumer);
  out["strict"] = consumer.strict();
  return out;
}

/// What an edge is, by the Python of it: imported when it is asked for.
template <auto kFacts, class Port>
py::object explain(Port& port, bool measure) {
  return py::module_::import("flowtrain_core.edges").attr("explanation_of")(kFacts(port), measure);
}

/// Copies what has the buffer protocol into a slab, without the interpreter's lock.
void write(Lease& lease, const py::object& source) {
  Py_buffer view;
  if (PyObject_GetBuffer(source.ptr(), &view, PyBUF_CONTIG_RO) != 0) throw py::error_already_set();
  const std::unique_ptr<Py_buffer, decltype(&PyBuffer_Release)> held(&view, &PyBuffer_Release);
  lease.pool().check_not_forked();
  if (!lease.open()) {
    throw PoolClosed("write: the lease was published or aborted already; lease another slab");
  }
  const auto bytes = static_cast<std::uint64_t>(view.len);
  if (bytes != lease.layout().bytes) {
    throw BadArgument("write: the source has " + std::to_string(bytes) + " bytes and the lease " +
                      std::to_string(lease.layout().bytes) + "; lease what the source has");
  }
  const Lease::Writing writing(lease);
  const WithoutGil release;
  memory::copy(lease.data(), static_cast<const std::byte*>(view.buf), bytes);
}

Exported exported(const std::shared_ptr<Lease>& lease) { return export_lease(lease); }
Exported exported(const std::shared_ptr<Item>& item) { return export_item(item); }

/// The buffer protocol of a class: real slots, so that views count themselves out as well.
template <class T>
py::custom_type_setup buffer_slots() {
  return py::custom_type_setup([](PyHeapTypeObject* type) {
    type->ht_type.tp_as_buffer = &type->as_buffer;
    type->as_buffer.bf_getbuffer = [](PyObject* self, Py_buffer* view, int flags) {
      try {
        return fill_buffer(self, exported(py::handle(self).cast<std::shared_ptr<T>>()), view,
                           flags);
      } catch (const std::exception& error) {
        view->obj = nullptr;
        PyErr_SetString(PyExc_BufferError, error.what());
        return -1;
      }
    };
    type->as_buffer.bf_releasebuffer = [](PyObject*, Py_buffer* view) { release_buffer(view); };
  });
}

/// `__dlpack__` and `__dlpack_device__`, the same for leases and items.
template <class Class>
void add_dlpack(Class& type) {
  using Holder = std::shared_ptr<typename Class::type>;
  type.def(
          "__dlpack__",
          [](const Holder& self, const py::object& stream, const py::object& max_version,
             const py::object& dl_device, const py::object& copy) {
            if (!stream.is_none()) {
              throw BadArgument("__dlpack__: stream must be None, the memory is the host's");
            }
            if (!dl_device.is_none() && !dl_device.equal(py::make_tuple(dlpack::kCpu, 0))) {
              throw py::buffer_error("__dlpack__: the memory is the host's; copy it to a device");
            }
            if (!copy.is_none() && copy.cast<bool>()) {
              throw py::buffer_error("__dlpack__: copy=True is not offered; copy the view");
            }
            return to_dlpack(exported(self), max_version);
          },
          py::kw_only(), py::arg("stream") = py::none(), py::arg("max_version") = py::none(),
          py::arg("dl_device") = py::none(), py::arg("copy") = py::none())
      .def("__dlpack_device__", [](const Holder&) { return py::make_tuple(dlpack::kCpu, 0); });
}

/// `__array__`, which numpy asks for only where the buffer protocol fails: it swallows the error
/// there and would make an array of one object.
template <class Class>
void add_array(Class& type) {
  using Holder = std::shared_ptr<typename Class::type>;
  type.def(
      "__array__",
      [](const py::object& self, const py::object& dtype, const py::object& copy) {
        static_cast<void>(exported(self.cast<Holder>()));
        const auto view = py::reinterpret_steal<py::object>(PyMemoryView_FromObject(self.ptr()));
        if (!view) throw py::error_already_set();
        const auto numpy = py::module_::import("numpy");
        // Before 2.0 `asarray` has no `copy`.
        return copy.is_none() ? numpy.attr("asarray")(view, dtype)
                              : numpy.attr("asarray")(view, dtype, py::arg("copy") = copy);
      },
      py::arg("dtype") = py::none(), py::arg("copy") = py::none());
}

/// `close` and the context manager, the same for producers and consumers.
template <class Class>
void add_close(Class& type) {
  using T = typename Class::type;
  type.def("close", &T::close)
      .def("__enter__", [](std::shared_ptr<T> self) { return self; })
      .def("__exit__", [](T& self, const py::args&) { self.close(); });
}

}  // namespace

void bind_channel(py::module_& module) {
  py::class_<Lease, std::shared_ptr<Lease>> lease_type(module, "Lease", buffer_slots<Lease>());
  add_dlpack(lease_type);
  add_array(lease_type);
  add_fast<&publish>(lease_type, "publish", "publish($self, /, key)\n--\n\n");
  lease_type.def("write", &write, py::arg("source"))
      .def("abort", &Lease::abort)
      .def_property_readonly("shape",
                             [](const Lease& self) {
                               return shape_tuple(self.layout().shape.data(), self.layout().ndim);
                             })
      .def_property_readonly("dtype",
                             [](const Lease& self) { return dtype_name(self.layout().dtype); })
      .def_property_readonly("nbytes", [](const Lease& self) { return self.layout().bytes; })
      .def_property_readonly("address", &Lease::address);

  py::class_<Item, std::shared_ptr<Item>> item_type(module, "Item", buffer_slots<Item>());
  add_dlpack(item_type);
  add_array(item_type);
  add_fast<&release>(item_type, "release", "release($self, /)\n--\n\n");
  item_type
      .def_property_readonly("key", [](const Item& self) { return key_object(self.descriptor()); })
      .def_property_readonly("shape",
                             [](const Item& self) {
                               return shape_tuple(self.descriptor().shape, self.descriptor().ndim);
                             })
      .def_property_readonly("dtype",
                             [](const Item& self) { return dtype_name(self.descriptor().dtype); })
      .def_property_readonly("nbytes", [](const Item& self) { return self.descriptor().bytes; })
      .def_property_readonly("address", [](const Item& self) { return self.descriptor().address; })
      .def_property_readonly("attempt", &Item::attempt)
      .def_property_readonly("producer", &Item::producer)
      .def("__enter__", [](std::shared_ptr<Item> self) { return self; })
      .def("__exit__", [](Item& self, const py::object& kind, const py::args&) {
        if (!self.open()) return;
        // An error has a traceback that holds the views: it goes on, and the item is given back
        // once they are gone; in a forked child, by the parent.
        if (!kind.is_none() && (self.has_views() || self.pool().forked())) return;
        self.release();
      });

  py::class_<Producer, std::shared_ptr<Producer>> producer_type(module, "Producer");
  producer_type
      .def(py::init(&make_producer), py::arg("pool"), py::arg("ring") = "default", py::kw_only(),
           py::arg("segment") = py::none(), py::arg("max_bytes") = py::none(),
           py::arg("max_items") = py::none(), py::arg("when_full") = "block",
           py::arg("strict") = false)
      .def("explain", &explain<&producer_facts, Producer>, py::kw_only(),
           py::arg("measure") = false)
      .def("publish_many", &publish_many, py::arg("leases"), py::arg("keys"));
  add_fast<&lease>(producer_type, "lease", "lease($self, /, shape, dtype, timeout_s=None)\n--\n\n");
  add_close(producer_type);

  py::class_<Consumer, std::shared_ptr<Consumer>> consumer_type(module, "Consumer");
  consumer_type
      .def(py::init<std::shared_ptr<Pool>, const std::string&, bool>(), py::arg("pool"),
           py::arg("ring") = "default", py::kw_only(), py::arg("strict") = false)
      .def("explain", &explain<&consumer_facts, Consumer>, py::kw_only(),
           py::arg("measure") = false)
      .def("try_get", &try_get)
      .def("get_many", &get_many, py::arg("max_items"), py::arg("timeout_s") = py::none());
  add_fast<&get>(consumer_type, "get", "get($self, /, timeout_s=None)\n--\n\n");
  add_close(consumer_type);
}

}  // namespace flowtrain::bindings
