#include <pybind11/numpy.h>
#include <pybind11/stl.h>

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/error.hpp"
#include "bindings/gil.hpp"
#include "bindings/ops/bindings.hpp"
#include "bindings/ops/floats.hpp"
#include "memory/packed_rows.hpp"

#ifdef FLOWTRAIN_WITH_CUDA
#include "cuda/gather.hpp"
#endif

namespace py = pybind11;

namespace flowtrain::bindings {
namespace {

using Pieces = py::array_t<std::int64_t, py::array::c_style>;
/// Address and number of elements of each memory.
using Memories = std::vector<std::pair<std::uint64_t, std::uint64_t>>;

memory::PackedRows rows_of(const Pieces& pieces, const Memories& memories,
                           std::size_t element_bytes, std::int64_t width, std::int64_t rows) {
  constexpr py::ssize_t kColumns = sizeof(memory::RowPiece) / sizeof(std::int64_t);
  if (pieces.ndim() != 2 || pieces.shape(1) != kColumns) {
    throw BadArgument("pieces: must be int64 of shape [pieces, " + std::to_string(kColumns) +
                      "]: memory, offset, rows and first row");
  }
  std::vector<memory::Elements> given;
  given.reserve(memories.size());
  for (const auto& [address, count] : memories) given.push_back({address, count});
  const auto* first = reinterpret_cast<const memory::RowPiece*>(pieces.data());
  return {std::span(first, static_cast<std::size_t>(pieces.shape(0))), given, element_bytes, width,
          rows};
}

#ifdef FLOWTRAIN_WITH_CUDA

template <auto kCopy>
void copy_rows(std::uint64_t packed, std::string_view packed_dtype, const Pieces& pieces,
               const Memories& memories, std::string_view slab_dtype, std::int64_t width,
               std::int64_t rows, int device, std::uintptr_t stream) {
  const cuda::Float of_packed = float_of(packed_dtype), of_slab = float_of(slab_dtype);
  const WithoutGil released;
  kCopy(device, packed, of_packed, rows_of(pieces, memories, cuda::bytes_of(of_slab), width, rows),
        of_slab, reinterpret_cast<CUstream>(stream));
}

template <auto kCopy>
void bind_copy(py::module_& module, const char* name) {
  module.def(name, &copy_rows<kCopy>, py::arg("packed"), py::arg("packed_dtype"),
             py::arg("pieces").noconvert(), py::arg("memories"), py::arg("slab_dtype"),
             py::kw_only(), py::arg("width"), py::arg("rows"), py::arg("device"),
             py::arg("stream"));
}

#endif

}  // namespace

void bind_rows(py::module_& module) {
  module.def(
      "check_rows",
      [](const Pieces& pieces, const Memories& memories, std::size_t element_bytes,
         std::int64_t width, std::int64_t rows, bool disjoint) {
        const memory::PackedRows made = rows_of(pieces, memories, element_bytes, width, rows);
        if (disjoint) made.check_disjoint();
      },
      py::arg("pieces").noconvert(), py::arg("memories"), py::arg("element_bytes"), py::kw_only(),
      py::arg("width"), py::arg("rows"), py::arg("disjoint"));
#ifdef FLOWTRAIN_WITH_CUDA
  bind_copy<&cuda::gather_rows>(module, "cuda_gather_rows");
  bind_copy<&cuda::scatter_rows>(module, "cuda_scatter_rows");
#endif
}

}  // namespace flowtrain::bindings
