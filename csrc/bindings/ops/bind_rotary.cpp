#include <cstdint>
#include <string_view>

#include "base/error.hpp"
#include "bindings/gil.hpp"
#include "bindings/ops/bindings.hpp"
#include "bindings/ops/floats.hpp"

#ifdef FLOWTRAIN_WITH_CUDA
#include "cuda/rotary.hpp"
#endif

namespace py = pybind11;

namespace flowtrain::bindings {

#ifdef FLOWTRAIN_WITH_CUDA

namespace {

/// Address, distances of tokens and of heads, of the source and of the result; and heads.
cuda::RotaryHeads heads_of(const py::tuple& given) {
  constexpr std::size_t kFields = 7;
  if (given.size() != kFields) throw BadArgument("queries and keys: must be tuples of 7 numbers");
  const auto number = [&](std::size_t i) { return given[i].cast<std::int64_t>(); };
  return {given[0].cast<std::uint64_t>(),
          given[3].cast<std::uint64_t>(),
          number(1),
          number(2),
          number(4),
          number(5),
          given[6].cast<std::uint32_t>()};
}

}  // namespace

void bind_rotary(py::module_& module) {
  module.def(
      "cuda_rotate",
      [](const py::tuple& queries, const py::tuple& keys, std::string_view dtype, std::uint64_t cos,
         std::uint64_t sin, std::string_view angle_dtype, std::uint32_t tokens,
         std::uint32_t head_dim, bool back, int device, std::uintptr_t stream) {
        if (head_dim % 2 != 0) {
          throw BadArgument("head_dim=" + std::to_string(head_dim) + ": must be even");
        }
        const cuda::RotaryTask task{
            heads_of(queries), heads_of(keys), cos, sin, tokens, head_dim / 2, back};
        const cuda::Float of_values = float_of(dtype), of_angles = float_of(angle_dtype);
        const WithoutGil released;
        cuda::rotate(device, task, of_values, of_angles, reinterpret_cast<CUstream>(stream));
      },
      py::arg("queries"), py::arg("keys"), py::arg("dtype"), py::arg("cos"), py::arg("sin"),
      py::arg("angle_dtype"), py::kw_only(), py::arg("tokens"), py::arg("head_dim"),
      py::arg("back"), py::arg("device"), py::arg("stream"));
}

#else

void bind_rotary(py::module_&) {}

#endif

}  // namespace flowtrain::bindings
