#pragma once

#include <pybind11/pybind11.h>

#include <memory>

#include "channel/consumer.hpp"
#include "channel/producer.hpp"

namespace flowtrain::bindings {

/// Zero-copy view of a lease (writable) or an item (read-only): the memory, its type and shape, and
/// the count of views, which keeps the lease or item alive. While any view lives, a lease is not
/// published and an item not released.
struct Exported {
  std::shared_ptr<channel::Views> views;
  void* data;
  std::uint8_t dtype;
  int ndim;
  std::int64_t shape[channel::kMaxDims];
  std::int64_t strides[channel::kMaxDims];  ///< In elements.
  bool read_only;
};

Exported export_lease(const std::shared_ptr<channel::Lease>& lease);
Exported export_item(const std::shared_ptr<channel::Item>& item);

/// The capsule of `__dlpack__`, versioned if the importer supports DLPack 1.0.
///
/// Errors: ViewRefused for an item if it does not: the older capsule has no read-only flag.
pybind11::object to_dlpack(Exported exported, const pybind11::object& max_version);

/// Fills a view of the buffer protocol.
///
/// Errors: ViewRefused if the protocol lacks the dtype, or a writable view of an item is wanted.
void fill_buffer(PyObject* exporter, Exported exported, Py_buffer* view, int flags);
void release_buffer(Py_buffer* view);

}  // namespace flowtrain::bindings
