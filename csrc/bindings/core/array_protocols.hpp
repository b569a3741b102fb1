#pragma once

#include <pybind11/pybind11.h>

#include <memory>

#include "base/error.hpp"
#include "bindings/core/arguments.hpp"
#include "bindings/core/bindings.hpp"
#include "bindings/core/dlpack.hpp"
#include "bindings/core/views.hpp"

namespace flowtrain::bindings {

/// Protocols by which numpy, torch and others view a lease or an item without a copy.

inline ExportedView exported(const std::shared_ptr<channel::Lease>& lease) {
  return export_lease(lease);
}
inline ExportedView exported(const std::shared_ptr<channel::Item>& item) {
  return export_item(item);
}

/// The buffer protocol of a class. Set as type slots, because releasebuffer must count down the
/// views.
template <class T>
pybind11::custom_type_setup buffer_slots() {
  return pybind11::custom_type_setup([](PyHeapTypeObject* type) {
    type->ht_type.tp_as_buffer = &type->as_buffer;
    type->as_buffer.bf_getbuffer = [](PyObject* self, Py_buffer* view, int flags) {
      try {
        const auto owner = held<T>(self);
        try {
          fill_buffer(self, exported(owner), view, flags);
        } catch (const PoolClosed& error) {
          throw ViewRefused(error.what());  // The protocol demands a BufferError.
        }
        return 0;
      } catch (...) {
        view->obj = nullptr;
        pybind11::detail::try_translate_exceptions();
        return -1;
      }
    };
    type->as_buffer.bf_releasebuffer = [](PyObject*, Py_buffer* view) { release_buffer(view); };
  });
}

/// Adds `__dlpack__` and `__dlpack_device__`, the same for leases and items.
template <class Class>
void add_dlpack(Class& type) {
  using T = typename Class::type;
  type.def(
          "__dlpack__",
          [](const pybind11::object& object, const pybind11::object& stream,
             const pybind11::object& max_version, const pybind11::object& dl_device,
             const pybind11::object& copy) {
            const std::shared_ptr<T> self = held<T>(object);
            const dlpack::DLDevice device = device_of(self->slab());
            if (!stream.is_none() && device.device_type == dlpack::kCpu) {
              throw BadArgument("__dlpack__: stream must be None, the memory is the host's");
            }
            const auto here = pybind11::make_tuple(device.device_type, device.device_id);
            if (!dl_device.is_none() && !dl_device.equal(here)) {
              const bool on_host = device.device_type == dlpack::kCpu;
              const std::string where = "CUDA device " + std::to_string(device.device_id);
              throw ViewRefused("__dlpack__: the memory is that of " +
                                (on_host ? std::string("the host") : where) +
                                "; copy it to another device");
            }
            if (!copy.is_none() && pybind11::bool_(copy)) {
              throw ViewRefused("__dlpack__: copy=True is not offered; copy the view");
            }
            ExportedView view = exported(self);
            if (device.device_type != dlpack::kCpu) self->use_on(dlpack_stream_of(stream.ptr()));
            return to_dlpack(std::move(view), max_version);
          },
          pybind11::kw_only(), pybind11::arg("stream") = pybind11::none(),
          pybind11::arg("max_version") = pybind11::none(),
          pybind11::arg("dl_device") = pybind11::none(), pybind11::arg("copy") = pybind11::none())
      .def("__dlpack_device__", [](const T& self) {
        const dlpack::DLDevice device = device_of(self.slab());
        return pybind11::make_tuple(device.device_type, device.device_id);
      });
}

/// Adds `__array__`. Numpy calls it only if the buffer protocol fails; without it numpy would
/// swallow that error and make an array of one object.
template <class Class>
void add_array(Class& type) {
  using T = typename Class::type;
  type.def(
      "__array__",
      [](const pybind11::object& self, const pybind11::object& dtype,
         const pybind11::object& copy) {
        static_cast<void>(exported(held<T>(self)));
        const auto view =
            pybind11::reinterpret_steal<pybind11::object>(PyMemoryView_FromObject(self.ptr()));
        if (!view) throw pybind11::error_already_set();
        const auto numpy = pybind11::module_::import("numpy");
        // Before 2.0 `asarray` has no `copy`.
        return copy.is_none() ? numpy.attr("asarray")(view, dtype)
                              : numpy.attr("asarray")(view, dtype, pybind11::arg("copy") = copy);
      },
      pybind11::arg("dtype") = pybind11::none(), pybind11::arg("copy") = pybind11::none());
}

}  // namespace flowtrain::bindings
