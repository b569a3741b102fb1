#include "bindings/core/bindings.hpp"

#ifdef FLOWTRAIN_WITH_CUDA

#include <pybind11/stl.h>

#include <memory>
#include <mutex>

#include "base/error.hpp"
#include "bindings/core/arguments.hpp"
#include "bindings/core/port.hpp"
#include "bindings/gil.hpp"
#include "channel/pool.hpp"
#include "cuda/copy.hpp"
#include "cuda/device.hpp"
#include "cuda/driver.hpp"
#include "cuda/registration.hpp"
#include "cuda/stream_order.hpp"
#include "memory/stream_page.hpp"
#include "os/fd_socket.hpp"

namespace py = pybind11;

namespace flowtrain::bindings {
namespace {

using cuda::DeviceFacts;

constexpr os::FdRequest kRequest{0, 0};  // A server has one descriptor.

/// Holds an owner of the core for Python until `close`, the end of a context manager, or
/// destruction. Use it with the GIL. A call that releases the GIL keeps its value alive by `get`.
template <class T>
class Closable {
 public:
  Closable(T value, const char* what)
      : value_(std::make_shared<T>(std::move(value))), what_(what) {}

  std::shared_ptr<T> get() const {
    if (!value_) throw PoolClosed(std::string(what_) + ": it is closed");
    return value_;
  }
  void close() {
    auto server = std::move(server_);
    auto value = std::move(value_);
    const WithoutGil release;
    server.reset();
    value.reset();
  }
  bool closed() const { return !value_; }

  /// Serves a descriptor to processes of this user until close.
  void serve(const std::string& path, const os::Fd& fd) {
    server_ = std::make_unique<os::FdServer>(what_, path, kRequest.nonce, [&fd](std::uint64_t id) {
      return id == kRequest.id ? os::Exported(os::duplicate(fd)) : os::Exported();
    });
  }

 private:
  std::shared_ptr<T> value_;
  const char* what_;
  std::unique_ptr<os::FdServer> server_;
};

using Memory = Closable<cuda::HostRegistration>;

CUstream stream_of(std::uintptr_t stream) { return reinterpret_cast<CUstream>(stream); }

os::Fd fetch(const std::string& path) {
  const WithoutGil release;
  std::optional<os::Exported> found = os::receive_exported(path, kRequest);
  if (!found || !found->fds[0]) {
    throw SystemCallError(path +
                          ": no process serves a descriptor there; call serve() in the process "
                          "that made it, and keep that process running");
  }
  return std::move(found->fds[0]);
}

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

template <class Class>
void add_close(Class& type) {
  using T = typename Class::type;
  add_enter(type);
  type.def("close", &T::close)
      .def_property_readonly("closed", &T::closed)
      .def("__exit__", [](T& self, const py::args&) { self.close(); });
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
  py::class_<Memory, std::shared_ptr<Memory>> memory(module, "CudaHostRegistration");
  memory
      .def(py::init([](std::uintptr_t address, std::uint64_t bytes, int device) {
             const WithoutGil release;
             return std::make_shared<Memory>(
                 cuda::HostRegistration(reinterpret_cast<void*>(address), bytes, device,
                                        "host memory"),
                 "host registration");
           }),
           py::arg("address"), py::arg("nbytes"), py::kw_only(), py::arg("device"))
      .def_property_readonly("device_address",
                             [](Memory& self) { return self.get()->device_address(); });
  add_close(memory);
}

/// A memory::StreamPage in a memfd of its own, for processes that share no pool.
class OwnPage {
 public:
  static constexpr const char* kWhat = "stream page";

  OwnPage(os::Fd fd, std::uint32_t slabs, std::optional<int> device)
      : fd_(std::move(fd)), mapping_(fd_, bytes_of(slabs), kWhat), page_(mapping_.data(), slabs) {
    if (!device) return;
    registration_.emplace(mapping_.data(), mapping_.bytes(), *device, kWhat);
    order_.emplace(page_, registration_->device_address(), *device);
  }

  static std::size_t bytes_of(std::uint32_t slabs) {
    if (slabs == 0) throw BadArgument("stream page: slabs=0 must be at least 1");
    return round_up(memory::StreamPage::bytes_for(slabs), kPageBytes);
  }
  static OwnPage create(std::uint32_t slabs, std::optional<int> device) {
    OwnPage made(os::sealed_memfd(kWhat, bytes_of(slabs)), slabs, device);
    for (std::uint32_t slab = 0; slab < slabs; ++slab) made.page_.reset(slab, 0);
    return made;
  }
  static OwnPage open(os::Fd fd, std::uint32_t slabs, std::optional<int> device) {
    if (os::is_sealed(fd, bytes_of(slabs))) return {std::move(fd), slabs, device};
    throw BadArgument("stream page: the descriptor is not that of a page of " +
                      std::to_string(slabs) + " slabs; pass the number its creator gave");
  }

  const os::Fd& fd() const { return fd_; }
  const memory::StreamPage& page(std::uint32_t slab) const {
    if (slab < page_.slabs()) return page_;
    throw BadArgument("stream page: slab " + std::to_string(slab) + " must be below " +
                      std::to_string(page_.slabs()));
  }
  const memory::StreamPage& page() const { return page_; }
  const cuda::StreamOrder& order() const {
    if (order_) return *order_;
    throw BadArgument("stream page: made without a device; pass device= to use it on a stream");
  }

 private:
  os::Fd fd_;
  os::Mapping mapping_;
  std::optional<cuda::HostRegistration> registration_;  // Destroyed before the mapping.
  memory::StreamPage page_;
  std::optional<cuda::StreamOrder> order_;
};

using Page = Closable<OwnPage>;

const char* name_of(memory::Progress progress) {
  switch (progress) {
    case memory::Progress::kPending: return "pending";
    case memory::Progress::kReached: return "reached";
    case memory::Progress::kPoisoned: return "poisoned";
    case memory::Progress::kStale: return "stale";
  }
  return "";
}

void bind_page(py::module_& module) {
  py::class_<Page, std::shared_ptr<Page>> page(module, "CudaStreamPage");
  page.def(py::init([](std::uint32_t slabs, std::optional<int> device) {
             const WithoutGil release;
             return std::make_shared<Page>(OwnPage::create(slabs, device), OwnPage::kWhat);
           }),
           py::arg("slabs"), py::kw_only(), py::arg("device") = py::none())
      .def_static(
          "receive",
          [](const std::string& path, std::uint32_t slabs, std::optional<int> device) {
            os::Fd fd = fetch(path);
            const WithoutGil release;
            return std::make_shared<Page>(OwnPage::open(std::move(fd), slabs, device),
                                          OwnPage::kWhat);
          },
          py::arg("path"), py::arg("slabs"), py::kw_only(), py::arg("device") = py::none())
      .def(
          "serve", [](Page& self, const std::string& path) { self.serve(path, self.get()->fd()); },
          py::arg("path"));
  const auto step = [&](const char* name, auto call) {
    page.def(
        name,
        [call](Page& self, std::uintptr_t stream, std::uint32_t slab, std::uint32_t generation,
               std::uint32_t lane) {
          (self.get()->order().*call)(stream_of(stream), slab, generation, lane);
        },
        py::arg("stream"), py::arg("slab"), py::arg("generation"), py::kw_only(), py::arg("lane"));
  };
  step("publish_on", &cuda::StreamOrder::publish_on);
  step("release_on", &cuda::StreamOrder::release_on);
  page.def(
      "wait_written",
      [](Page& self, std::uintptr_t stream, std::uint32_t slab, std::uint32_t generation) {
        self.get()->order().wait_written(stream_of(stream), slab, generation);
      },
      py::arg("stream"), py::arg("slab"), py::arg("generation"));
  const auto host = [&](const char* name, auto call) {
    page.def(
        name,
        [call](Page& self, std::uint32_t slab, std::uint32_t generation) {
          const auto own = self.get();
          return call(own->page(slab), slab, generation);
        },
        py::arg("slab"), py::arg("generation"));
  };
  using memory::StreamPage;
  using std::uint32_t;
  host("written",
       [](const StreamPage& p, uint32_t s, uint32_t g) { return name_of(p.written(s, g)); });
  host("read", [](const StreamPage& p, uint32_t s, uint32_t g) { return name_of(p.read(s, g)); });
  host("may_write", [](const StreamPage& p, uint32_t s, uint32_t g) { return p.may_write(s, g); });
  host("confirm", [](const StreamPage& p, uint32_t s, uint32_t g) { return p.confirm(s, g); });
  host("finish_write",
       [](const StreamPage& p, uint32_t s, uint32_t g) { return p.finish_write(s, g); });
  host("finish_read",
       [](const StreamPage& p, uint32_t s, uint32_t g) { return p.finish_read(s, g); });
  page.def_property_readonly("address", [](Page& self) { return self.get()->order().address(); });
  page.def(
      "reset",
      [](Page& self, uint32_t slab, uint32_t next) {
        const auto own = self.get();
        own->page(slab).reset(slab, next);
      },
      py::arg("slab"), py::arg("next"));
  page.def(
      "settle", [](Page& self, uint32_t lane) { return self.get()->page().settle(lane); },
      py::arg("lane"));
  add_close(page);
}

void bind_copies(py::module_& module) {
  const auto arguments = [&](const char* name, auto call) {
    module.def(name, call, py::arg("target"), py::arg("source"), py::arg("nbytes"), py::kw_only(),
               py::arg("device"), py::arg("stream"), py::call_guard<WithoutGil>());
  };
  arguments("cuda_copy_to_device", [](std::uint64_t target, std::uintptr_t source,
                                      std::uint64_t bytes, int device, std::uintptr_t stream) {
    cuda::copy_to_device(device, target, reinterpret_cast<const void*>(source), bytes,
                         stream_of(stream));
  });
  arguments("cuda_copy_to_host", [](std::uintptr_t target, std::uint64_t source,
                                    std::uint64_t bytes, int device, std::uintptr_t stream) {
    cuda::copy_to_host(device, reinterpret_cast<void*>(target), source, bytes, stream_of(stream));
  });
  arguments("cuda_copy_on_device", [](std::uint64_t target, std::uint64_t source,
                                      std::uint64_t bytes, int device, std::uintptr_t stream) {
    cuda::copy_on_device(device, target, source, bytes, stream_of(stream));
  });
  module.def(
      "cuda_synchronize",
      [](int device, std::uintptr_t stream) { cuda::synchronize(device, stream_of(stream)); },
      py::kw_only(), py::arg("device"), py::arg("stream"), py::call_guard<WithoutGil>());
  module.def("cuda_register_host", &register_host, py::arg("pool"), py::kw_only(),
             py::arg("device"));
}

}  // namespace

void bind_cuda(py::module_& module) {
  module.attr("cuda_built") = true;
  bind_devices(module);
  bind_memory(module);
  bind_page(module);
  bind_copies(module);
}

}  // namespace flowtrain::bindings

#else

namespace flowtrain::bindings {

void bind_cuda(pybind11::module_& module) { module.attr("cuda_built") = false; }

}  // namespace flowtrain::bindings

#endif
