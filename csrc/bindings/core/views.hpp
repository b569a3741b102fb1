#pragma once

#include <pybind11/pybind11.h>

#include <memory>

#include "bindings/core/dlpack.hpp"
#include "channel/consumer.hpp"
#include "channel/producer.hpp"

namespace flowtrain::bindings {

/// Zero-copy view of a lease (writable) or an item (read-only): the memory, its type and shape, and
/// the count of views, which keeps the lease or item alive. While any view lives, a lease is not
/// published and an item not released.
struct ExportedView {
  std::shared_ptr<channel::Views> views;
  void* data;  ///< Address on the device.
  dlpack::DLDevice device;
  std::uint8_t dtype;
  int ndim;
  std::int64_t shape[channel::kMaxDims];
  std::int64_t strides[channel::kMaxDims];  ///< In elements.
  bool read_only;
};

/// Device of a slab's views: the host's, if the host can access the slab.
dlpack::DLDevice device_of(const channel::SlabView& slab);
/// Refuses what only works in memory that the host can access; `what` names it.
void check_on_host(const dlpack::DLDevice& device, const char* what);

ExportedView export_lease(const std::shared_ptr<channel::Lease>& lease);
ExportedView export_item(const std::shared_ptr<channel::Item>& item);

/// The capsule of `__dlpack__`, versioned if the importer supports DLPack 1.0.
///
/// Errors: ViewRefused for an item if it does not: the older capsule has no read-only flag.
pybind11::object to_dlpack(ExportedView exported, const pybind11::object& max_version);

/// Fills a view of the buffer protocol. One without a shape is that of a memoryview of the
/// exporter.
///
/// Errors: ViewRefused if the protocol lacks the dtype, a writable view of an item is wanted, or
/// the host cannot access the memory.
void fill_buffer(PyObject* exporter, ExportedView exported, Py_buffer* view, int flags);
void release_buffer(Py_buffer* view);

}  // namespace flowtrain::bindings
