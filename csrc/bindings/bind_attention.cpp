#include <pybind11/numpy.h>

#include <string>
#include <type_traits>

#include "attention/documents.hpp"
#include "base/error.hpp"
#include "bindings/bindings.hpp"
#include "bindings/gil.hpp"

namespace py = pybind11;

namespace flowtrain::bindings {
namespace {

using attention::Call;
using attention::Rows;
using Lengths = py::array_t<std::int64_t, py::array::c_style>;
using Heads = py::array_t<float>;
using Sums = py::array_t<float, py::array::c_style>;

/// The elements of an array, which the caller writes unless they are const.
template <class Float>
Float* elements(const py::array& array, const char* name) {
  if (!std::is_const_v<Float> && !array.writeable())
    throw BadArgument(std::string(name) + ": must be writable");
  return reinterpret_cast<Float*>(const_cast<void*>(array.data()));
}

/// Rows of an array of shape [heads, tokens, head_dim] whose last dimension is contiguous.
template <class Float>
Rows<Float> rows_of(const py::array& array, const char* name, std::int64_t heads,
                    const Call& call) {
  const auto size = static_cast<py::ssize_t>(sizeof(float));
  const bool fits = py::isinstance<Heads>(array) && array.ndim() == 3 && array.shape(0) == heads &&
                    array.shape(1) == call.tokens() && array.shape(2) == call.head_dim &&
                    (call.head_dim == 1 || array.strides(2) == size);
  if (!fits) {
    throw BadArgument(std::string(name) + ": must be float32 of shape [" + std::to_string(heads) +
                      ", " + std::to_string(call.tokens()) + ", " + std::to_string(call.head_dim) +
                      "], its last dimension contiguous");
  }
  return {elements<Float>(array, name), array.strides(0) / size, array.strides(1) / size};
}

Call call_of(const py::array& q, const py::array& k, const Lengths& lengths, float scale,
             bool causal) {
  if (q.ndim() != 3 || k.ndim() != 3 || k.shape(0) < 1 || q.shape(0) % k.shape(0) != 0) {
    throw BadArgument(
        "q, k: shapes must be [heads, tokens, head_dim] and [kv_heads, tokens, "
        "head_dim], with heads a multiple of kv_heads");
  }
  const std::span given(lengths.data(), static_cast<std::size_t>(lengths.size()));
  for (const std::int64_t length : given) {
    if (length < 1) throw BadArgument("lengths: " + std::to_string(length) + " is below 1");
  }
  return {given, q.shape(0), k.shape(0), q.shape(2), scale, causal};
}

template <class Float>
Float* sums_of(const Sums& sums, const Call& call) {
  if (sums.ndim() != 2 || sums.shape(0) != call.heads || sums.shape(1) != call.tokens())
    throw BadArgument("log_sums: shape must be [heads, tokens]");
  return elements<Float>(sums, "log_sums");
}

void forward(const py::array& q, const py::array& k, const py::array& v, const Lengths& lengths,
             float scale, bool causal, const py::array& out, const Sums& log_sums) {
  const Call call = call_of(q, k, lengths, scale, causal);
  const auto q_rows = rows_of<const float>(q, "q", call.heads, call);
  const auto k_rows = rows_of<const float>(k, "k", call.kv_heads, call);
  const auto v_rows = rows_of<const float>(v, "v", call.kv_heads, call);
  const auto out_rows = rows_of<float>(out, "out", call.heads, call);
  auto* sums = sums_of<float>(log_sums, call);
  const WithoutGil released;
  attention::forward(call, q_rows, k_rows, v_rows, out_rows, sums);
}

void backward(const py::array& q, const py::array& k, const py::array& v, const Lengths& lengths,
              float scale, bool causal, const py::array& out, const Sums& log_sums,
              const py::array& of_out, const py::array& of_q, const py::array& of_k,
              const py::array& of_v) {
  const Call call = call_of(q, k, lengths, scale, causal);
  const auto q_rows = rows_of<const float>(q, "q", call.heads, call);
  const auto k_rows = rows_of<const float>(k, "k", call.kv_heads, call);
  const auto v_rows = rows_of<const float>(v, "v", call.kv_heads, call);
  const auto out_rows = rows_of<const float>(out, "out", call.heads, call);
  const auto of_out_rows = rows_of<const float>(of_out, "of_out", call.heads, call);
  const auto of_q_rows = rows_of<float>(of_q, "of_q", call.heads, call);
  const auto of_k_rows = rows_of<float>(of_k, "of_k", call.kv_heads, call);
  const auto of_v_rows = rows_of<float>(of_v, "of_v", call.kv_heads, call);
  const auto* sums = sums_of<const float>(log_sums, call);
  const WithoutGil released;
  attention::backward(call, q_rows, k_rows, v_rows, out_rows, sums, of_out_rows, of_q_rows,
                      of_k_rows, of_v_rows);
}

}  // namespace

void bind_attention(py::module_& module) {
  py::module_ attention = module.def_submodule("attention");
  // A converted array would be a copy, and what is written to it lost.
  const auto lengths = py::arg("lengths").noconvert(), log_sums = py::arg("log_sums").noconvert();
  attention.def("forward", forward, py::arg("q"), py::arg("k"), py::arg("v"), lengths,
                py::arg("scale"), py::arg("causal"), py::arg("out"), log_sums);
  attention.def("backward", backward, py::arg("q"), py::arg("k"), py::arg("v"), lengths,
                py::arg("scale"), py::arg("causal"), py::arg("out"), log_sums, py::arg("of_out"),
                py::arg("of_q"), py::arg("of_k"), py::arg("of_v"));
}

}  // namespace flowtrain::bindings
