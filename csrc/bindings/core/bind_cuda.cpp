#include "bindings/core/bindings.hpp"

#ifdef FLOWTRAIN_WITH_CUDA

#include <pybind11/stl.h>

#include <memory>
#include <utility>

#include "base/error.hpp"
#include "bindings/core/arguments.hpp"
#include "bindings/core/port.hpp"
#include "bindings/gil.hpp"
#include "channel/pool.hpp"
#include "cuda/copy.hpp"
#include "cuda/device.hpp"
#include "cuda/driver.hpp"
#include "cuda/registration.hpp"

namespace py = pybind11;

namespace flowtrain::bindings {
namespace {

using cuda::DeviceFacts;

/// Owns a registration until `close`, or the end of a context manager. Requires the GIL.
class Registration {
 public:
  explicit Registration(std::unique_ptr<cuda::HostRegistration> value) : value_(std::move(value)) {}

  std::uint64_t device_address() const {
    if (!value_) throw PoolClosed("host registration: it is closed");
    return value_->device_address();
  }
  void close() {
    auto value = std::move(value_);
    const WithoutGil release;
    value.reset();
  }
  bool closed() const { return !value_; }

 private:
  std::unique_ptr<cuda::HostRegistration> value_;
};

CUstream cu_stream(std::uintptr_t stream) { return reinterpret_cast<CUstream>(stream); }

std::uint64_t register_host(channel::Pool& pool, int device) {
  pool.check_open();
  const WithoutGil release;
  static_cast<void>(cuda::device_facts(device));  // Reports a bad device before any lock is taken.
  // One key for all devices: a registration is valid for each.
  return pool.segments().attach(
      kRegistration,
      [device](const memory::Memory& memory, const std::string& what) -> std::shared_ptr<void> {
        if (memory.host() == nullptr) return nullptr;
        return std::make_shared<cuda::HostRegistration>(memory.host(), memory.bytes(), device,
                                                        what);
      });
}

void bind_devices(py::module_& module) {
  py::class_<DeviceFacts>(module, "CudaDevice")
      .def_readonly("ordinal", &DeviceFacts::ordinal)
      .def_readonly("name", &DeviceFacts::name)
      .def_readonly("uuid", &DeviceFacts::uuid)
      .def_readonly("pci_bus_id", &DeviceFacts::pci_bus_id)
      .def_readonly("memory_bytes", &DeviceFacts::memory_bytes)
      .def_property_readonly("capability",
                             [](const DeviceFacts& d) {
                               return py::make_tuple(d.capability_major, d.capability_minor);
                             })
      .def_readonly("mig", &DeviceFacts::mig)
      .def_readonly("host_register", &DeviceFacts::host_register)
      .def_readonly("host_pointers", &DeviceFacts::host_pointers)
      .def_readonly("vmm", &DeviceFacts::vmm)
      .def_readonly("posix_fd", &DeviceFacts::posix_fd)
      .def_readonly("fabric", &DeviceFacts::fabric)
      .def_readonly("vmm_rdma", &DeviceFacts::vmm_rdma)
      .def_readonly("stream_words", &DeviceFacts::stream_words)
      .def_readonly("numa_node", &DeviceFacts::numa_node)
      .def("__repr__", [](const DeviceFacts& d) {
        return "CudaDevice(ordinal=" + std::to_string(d.ordinal) + ", name='" + d.name +
               "', uuid='" + d.uuid + "', memory_bytes=" + std::to_string(d.memory_bytes) + ")";
      });
  module.def("cuda_why_not", &cuda::why_not, py::call_guard<WithoutGil>());
  module.def("cuda_driver_version", [] {
    static_cast<void>(cuda::why_not());
    return cuda::driver_version();
  });
  module.def("cuda_devices", &cuda::devices, py::call_guard<WithoutGil>());
}

void bind_memory(py::module_& module) {
  py::class_<Registration, std::shared_ptr<Registration>> type(module, "CudaHostRegistration");
  type.def(py::init([](std::uintptr_t address, std::uint64_t bytes, int device) {
             const WithoutGil release;
             return std::make_shared<Registration>(std::make_unique<cuda::HostRegistration>(
                 reinterpret_cast<void*>(address), bytes, device, "host memory"));
           }),
           py::arg("address"), py::arg("nbytes"), py::kw_only(), py::arg("device"))
      .def_property_readonly("device_address", &Registration::device_address)
      .def("close", &Registration::close)
      .def_property_readonly("closed", &Registration::closed)
      .def("__exit__", [](Registration& self, const py::args&) { self.close(); });
  add_enter(type);
}

void bind_copies(py::module_& module) {
  const auto arguments = [&](const char* name, auto call) {
    module.def(name, call, py::arg("target"), py::arg("source"), py::arg("nbytes"), py::kw_only(),
               py::arg("device"), py::arg("stream"), py::call_guard<WithoutGil>());
  };
  arguments("cuda_copy_to_device", [](std::uint64_t target, std::uintptr_t source,
                                      std::uint64_t bytes, int device, std::uintptr_t stream) {
    cuda::copy_to_device(device, target, reinterpret_cast<const void*>(source), bytes,
                         cu_stream(stream));
  });
  arguments("cuda_copy_to_host", [](std::uintptr_t target, std::uint64_t source,
                                    std::uint64_t bytes, int device, std::uintptr_t stream) {
    cuda::copy_to_host(device, reinterpret_cast<void*>(target), source, bytes, cu_stream(stream));
  });
  arguments("cuda_copy_on_device", [](std::uint64_t target, std::uint64_t source,
                                      std::uint64_t bytes, int device, std::uintptr_t stream) {
    cuda::copy_on_device(device, target, source, bytes, cu_stream(stream));
  });
  module.def(
      "cuda_synchronize",
      [](int device, std::uintptr_t stream) { cuda::synchronize(device, cu_stream(stream)); },
      py::kw_only(), py::arg("device"), py::arg("stream"), py::call_guard<WithoutGil>());
  module.def("cuda_register_host", &register_host, py::arg("pool"), py::kw_only(),
             py::arg("device"));
}

}  // namespace

void bind_cuda(py::module_& module) {
  module.attr("cuda_built") = true;
  bind_devices(module);
  bind_memory(module);
  bind_copies(module);
}

}  // namespace flowtrain::bindings

#else

namespace flowtrain::bindings {

void bind_cuda(pybind11::module_& module) { module.attr("cuda_built") = false; }

}  // namespace flowtrain::bindings

#endif
