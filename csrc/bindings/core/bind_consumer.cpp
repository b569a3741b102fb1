#include <pybind11/stl.h>

#include <algorithm>
#include <memory>

#include "bindings/core/arguments.hpp"
#include "bindings/core/array_protocols.hpp"
#include "bindings/core/bindings.hpp"
#include "bindings/core/fast_call.hpp"
#include "bindings/core/port.hpp"
#include "channel/consumer.hpp"

namespace py = pybind11;

namespace flowtrain::bindings {
namespace {

using channel::Consumer;
using channel::Item;
using channel::Pool;

/// Whether an item arrives within kSpinS. Spins with the GIL held, since releasing and taking it
/// back costs a tenth of a hand-off, and only if there is no other thread, which would wait for the
/// GIL.
bool arrives_at_once(const Consumer& consumer, double max_s) {
  constexpr double kSpinS = 5e-6;
  const bool single_thread =
      PyThreadState_Next(PyInterpreterState_ThreadHead(PyInterpreterState_Get())) == nullptr;
  return single_thread && consumer.spin_until(Deadline::in(std::min(max_s, kSpinS)));
}

std::shared_ptr<Item> try_get(Consumer& consumer) {
  return call_at_once(consumer.pool(), [&] { return consumer.try_get(); });
}

std::vector<std::shared_ptr<Item>> try_get_many(Consumer& consumer, std::size_t max_items) {
  return call_at_once(consumer.pool(), [&] { return consumer.try_get_many(max_items); });
}

py::object release(PyObject* self, PyObject* const* args, Py_ssize_t num_args, PyObject* keywords) {
  static const Parameters<1> parameters("release", {"stream"}, 0);
  const auto [stream] = parameters.bind(args, num_args, keywords);
  self_of<Item>(self).release(stream_of(stream));
  return py::none();
}

py::list get_many(Consumer& consumer, const py::object& given, std::optional<double> timeout_s) {
  const auto max_items =
      static_cast<std::size_t>(number_in(given, "get_many: max_items", 1, INT64_MAX));
  const double max_s = checked_timeout(timeout_s.value_or(kDefaultTimeoutS));
  std::vector<std::shared_ptr<Item>> out = try_get_many(consumer, max_items);
  if (out.empty() && arrives_at_once(consumer, max_s)) out = try_get_many(consumer, max_items);
  if (out.empty()) {
    const WithoutGil release;
    out = consumer.get_many(max_items, Deadline::in(max_s), SignalCheck());
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
  const double max_s = timeout_of(timeout_s);
  // An item that is there, or arrives at once, is taken without releasing the GIL.
  std::shared_ptr<Item> out = try_get(consumer);
  if (!out && arrives_at_once(consumer, max_s)) out = try_get(consumer);
  if (!out) {
    const WithoutGil release;
    out = consumer.get(Deadline::in(max_s), SignalCheck());
  }
  if (!out) throw py::error_already_set();
  return wrapped(std::move(out));
}

py::dict consumer_facts(const Consumer& consumer) {
  py::dict out = port_facts(consumer);
  out["strict"] = consumer.strict();
  return out;
}

}  // namespace

void bind_consumer(py::module_& module) {
  py::class_<Item, std::shared_ptr<Item>> item_type(module, "Item", buffer_slots<Item>());
  add_dlpack(item_type);
  add_array(item_type);
  add_enter(item_type);
  add_fast<&release>(item_type, "release", "release($self, /, stream=None)\n--\n\n");
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
      .def(
          "wait",
          [](Item& self, const py::object& stream) {
            self.wait(
                static_cast<memory::StreamHandle>(number_in(stream.ptr(), "stream", 0, INT64_MAX)));
          },
          py::arg("stream"))
      .def("confirm", &Item::confirm)
      .def("__exit__", [](Item& self, const py::object& kind, const py::args&) {
        if (!self.open()) return;
        if (!kind.is_none()) return self.give_back();
        try {
          self.release();
        } catch (...) {
          self.give_back();
          throw;
        }
      });

  py::class_<Consumer, std::shared_ptr<Consumer>> consumer_type(module, "Consumer");
  consumer_type
      .def(py::init<std::shared_ptr<Pool>, const std::string&, bool>(), py::arg("pool").none(false),
           py::arg("ring") = "default", py::kw_only(), py::arg("strict") = true)
      .def("explain", &explain<&consumer_facts, Consumer>, py::kw_only(),
           py::arg("measure") = false)
      .def("try_get", &try_get)
      .def("get_many", &get_many, py::arg("max_items"), py::arg("timeout_s") = py::none());
  add_fast<&get>(consumer_type, "get", "get($self, /, timeout_s=None)\n--\n\n");
  add_close(consumer_type);
}

}  // namespace flowtrain::bindings
