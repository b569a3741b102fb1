#include "bindings/core/views.hpp"

#include "base/error.hpp"
#include "bindings/core/dlpack.hpp"
#include "channel/layout/dtype.hpp"

namespace py = pybind11;

namespace flowtrain::bindings {
namespace {

constexpr char kName[] = "dltensor";
constexpr char kVersionedName[] = "dltensor_versioned";

ExportedView describe(const channel::SlabView& slab, std::uint8_t dtype, int ndim,
                      const std::uint32_t* shape) {
  ExportedView out{};
  out.data = reinterpret_cast<void*>(slab.address);
  out.device = device_of(slab);
  out.dtype = dtype;
  out.ndim = ndim;
  std::int64_t stride = 1;
  for (int i = ndim - 1; i >= 0; --i) {
    out.shape[i] = shape[i];
    out.strides[i] = stride;
    stride *= shape[i];
  }
  return out;
}

/// A managed tensor of either version, and the view it refers to.
template <class Managed>
struct Holder {
  explicit Holder(ExportedView&& from) : exported(std::move(from)) {
    const channel::Dtype& dtype = channel::kDtypes[exported.dtype];
    managed.dl_tensor = {exported.data,
                         exported.device,
                         exported.ndim,
                         {dtype.dlpack_code, dtype.bits, 1},
                         exported.shape,
                         exported.strides,
                         0};
    managed.manager_ctx = this;
    managed.deleter = [](Managed* self) { delete static_cast<Holder*>(self->manager_ctx); };
    exported.views->add();
  }
  ~Holder() { exported.views->drop(); }
  Holder(const Holder&) = delete;
  Holder& operator=(const Holder&) = delete;

  Managed managed{};
  ExportedView exported;
};

/// Errors: TypeError if it is not a pair of integers.
int major_of(const py::object& max_version) {
  try {
    return max_version.cast<std::pair<int, int>>().first;
  } catch (const py::cast_error&) {
    throw py::type_error("__dlpack__: max_version=" + std::string(py::repr(max_version)) +
                         " must be a pair of integers, such as (1, 0)");
  }
}

template <class Managed>
py::object capsule_of(Holder<Managed>* holder, const char* name) {
  // An importer renames the capsule; this frees a capsule that was never imported.
  const auto destroy = [](PyObject* capsule) {
    for (const char* unused : {kName, kVersionedName}) {
      if (!PyCapsule_IsValid(capsule, unused)) continue;
      auto* managed = static_cast<Managed*>(PyCapsule_GetPointer(capsule, unused));
      managed->deleter(managed);
    }
  };
  PyObject* capsule = PyCapsule_New(&holder->managed, name, destroy);
  if (capsule == nullptr) {
    delete holder;
    throw py::error_already_set();
  }
  return py::reinterpret_steal<py::object>(capsule);
}

struct BufferState {
  ExportedView exported;
  Py_ssize_t shape[channel::kMaxDims];
  Py_ssize_t strides[channel::kMaxDims];
};

}  // namespace

dlpack::DLDevice device_of(const channel::SlabView& slab) {
  if (slab.data != nullptr) return {dlpack::kCpu, 0};
  return {dlpack::kCuda, slab.memory->ordinal()};
}

void check_on_host(const dlpack::DLDevice& device, const char* what) {
  if (device.device_type == dlpack::kCpu) return;
  throw ViewRefused(std::string(what) + " cannot access the memory of CUDA device " +
                    std::to_string(device.device_id) +
                    "; use DLPack (torch.from_dlpack), and copy on the device");
}

ExportedView export_lease(const std::shared_ptr<channel::Lease>& lease) {
  lease->pool().check_not_forked();
  if (!lease->open()) {
    throw PoolClosed("lease: it was published or aborted; a view would show another item's bytes");
  }
  const channel::Layout& layout = lease->layout();
  ExportedView out = describe(lease->slab(), layout.dtype, layout.ndim, layout.shape.data());
  out.views = {lease, &lease->views()};
  return out;
}

ExportedView export_item(const std::shared_ptr<channel::Item>& item) {
  item->pool().check_not_forked();
  if (!item->open()) {
    throw PoolClosed("item: it was released or given back; a view would show another item's bytes");
  }
  const channel::Descriptor& d = item->descriptor();
  ExportedView out = describe(item->slab(), d.dtype, d.ndim, d.shape);
  out.views = {item, &item->views()};
  out.read_only = true;
  return out;
}

py::object to_dlpack(ExportedView exported, const py::object& max_version) {
  const bool versioned = !max_version.is_none() && major_of(max_version) >= 1;
  if (!versioned && exported.read_only) {
    throw ViewRefused(
        "__dlpack__: an item is read-only, which DLPack before 1.0 cannot express; pass "
        "max_version=(1, 0), or copy the item");
  }
  if (!versioned) {
    return capsule_of(new Holder<dlpack::DLManagedTensor>(std::move(exported)), kName);
  }
  const bool read_only = exported.read_only;
  auto* holder = new Holder<dlpack::DLManagedTensorVersioned>(std::move(exported));
  holder->managed.version = {1, 0};
  holder->managed.flags = read_only ? dlpack::kReadOnly : 0;
  return capsule_of(holder, kVersionedName);
}

void fill_buffer(PyObject* exporter, ExportedView exported, Py_buffer* view, int flags) {
  check_on_host(exported.device, "the buffer protocol");
  const channel::Dtype& dtype = channel::kDtypes[exported.dtype];
  if (dtype.format == nullptr) {
    throw ViewRefused("the buffer protocol has no " + std::string(dtype.name) +
                      "; use DLPack (torch.from_dlpack) instead");
  }
  if (exported.read_only && (flags & PyBUF_WRITABLE) == PyBUF_WRITABLE) {
    throw ViewRefused("an item is read-only; copy it to write");
  }
  // Torch releases such a view at once, and keeps only a reference to `view->obj`. So that object
  // is a memoryview, whose own view counts as long as it lives.
  if ((flags & PyBUF_ND) == 0) {
    const auto owner = py::reinterpret_steal<py::object>(PyMemoryView_FromObject(exporter));
    if (!owner || PyObject_GetBuffer(owner.ptr(), view, flags) != 0) throw py::error_already_set();
    return;
  }
  auto* state = new BufferState{std::move(exported), {}, {}};
  const ExportedView& e = state->exported;
  const Py_ssize_t item_bytes = dtype.bits / 8;
  Py_ssize_t elements = 1;
  for (int i = 0; i < e.ndim; ++i) {
    state->shape[i] = e.shape[i];
    state->strides[i] = e.strides[i] * item_bytes;
    elements *= state->shape[i];
  }
  e.views->add();
  view->buf = e.data;
  view->obj = Py_NewRef(exporter);
  view->len = elements * item_bytes;
  view->itemsize = item_bytes;
  view->readonly = e.read_only ? 1 : 0;
  view->ndim = e.ndim;
  view->format = (flags & PyBUF_FORMAT) != 0 ? const_cast<char*>(dtype.format) : nullptr;
  view->shape = state->shape;
  view->strides = (flags & PyBUF_STRIDES) == PyBUF_STRIDES ? state->strides : nullptr;
  view->suboffsets = nullptr;
  view->internal = state;
}

void release_buffer(Py_buffer* view) {
  auto* state = static_cast<BufferState*>(view->internal);
  state->exported.views->drop();
  delete state;
}

}  // namespace flowtrain::bindings
