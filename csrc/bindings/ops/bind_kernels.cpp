#include <pybind11/numpy.h>
#include <pybind11/stl.h>

#include <algorithm>
#include <optional>
#include <string>
#include <type_traits>
#include <vector>

#include "base/error.hpp"
#include "bindings/gil.hpp"
#include "bindings/ops/bindings.hpp"
#include "kernels/kernels.hpp"

namespace py = pybind11;

namespace flowtrain::bindings {
namespace {

using kernels::Attention;
using kernels::Rows;
using Lengths = py::array_t<std::int64_t, py::array::c_style>;
using Floats = py::array_t<float, py::array::c_style>;
using Shape = std::vector<py::ssize_t>;

std::string text_of(const Shape& shape) {
  std::string text;
  for (const py::ssize_t size : shape) text += (text.empty() ? "[" : ", ") + std::to_string(size);
  return text + "]";
}

bool has_shape(const py::array& array, const Shape& shape) {
  return std::equal(shape.begin(), shape.end(), array.shape(), array.shape() + array.ndim());
}

/// The elements of an array, which the caller writes unless they are const.
template <class Float>
Float* elements(const py::array& array, const char* name) {
  if (!std::is_const_v<Float> && !array.writeable())
    throw BadArgument(std::string(name) + ": must be writable");
  return reinterpret_cast<Float*>(const_cast<void*>(array.data()));
}

/// Values of an array of shape [heads, tokens, head_dim] whose last dimension is contiguous.
template <class Float>
Rows<Float> rows_of(const py::array& array, const char* name, const Shape& shape) {
  const auto size = static_cast<py::ssize_t>(sizeof(float));
  if (!py::isinstance<py::array_t<float>>(array) || !has_shape(array, shape) ||
      (shape[2] > 1 && array.strides(2) != size)) {
    throw BadArgument(std::string(name) + ": must be float32 of shape " + text_of(shape) +
                      ", its last dimension contiguous");
  }
  return {elements<Float>(array, name), array.strides(0) / size, array.strides(1) / size};
}

template <class Float>
Float* floats_of(const Floats& array, const char* name, const Shape& shape) {
  if (!has_shape(array, shape))
    throw BadArgument(std::string(name) + ": shape must be " + text_of(shape));
  return elements<Float>(array, name);
}

Attention attention_of(const py::array& q, const py::array& k, const Lengths& lengths, float scale,
                       bool causal) {
  if (q.ndim() != 3 || k.ndim() != 3 || q.shape(2) < 1 || k.shape(0) < 1 ||
      q.shape(0) % k.shape(0) != 0) {
    throw BadArgument(
        "q, k: shapes must be [heads, tokens, head_dim] and [kv_heads, tokens, "
        "head_dim], with heads a multiple of kv_heads and head_dim at least 1");
  }
  const std::span given(lengths.data(), static_cast<std::size_t>(lengths.size()));
  for (const std::int64_t length : given) {
    if (length < 1 || length > q.shape(1)) {
      throw BadArgument("lengths: " + std::to_string(length) + " is not between 1 and the " +
                        std::to_string(q.shape(1)) + " tokens of q");
    }
  }
  return {given, q.shape(0), k.shape(0), q.shape(2), scale, causal};
}

void attention(const py::array& q, const py::array& k, const py::array& v, const Lengths& lengths,
               float scale, bool causal, const py::array& out, const Floats& log_sums) {
  const Attention call = attention_of(q, k, lengths, scale, causal);
  const Shape of_heads{call.heads, call.tokens(), call.head_dim};
  const Shape of_kv_heads{call.kv_heads, call.tokens(), call.head_dim};
  const auto q_rows = rows_of<const float>(q, "q", of_heads);
  const auto k_rows = rows_of<const float>(k, "k", of_kv_heads);
  const auto v_rows = rows_of<const float>(v, "v", of_kv_heads);
  const auto out_rows = rows_of<float>(out, "out", of_heads);
  auto* sums = floats_of<float>(log_sums, "log_sums", {call.heads, call.tokens()});
  const WithoutGil released;
  kernels::attention(call, q_rows, k_rows, v_rows, out_rows, sums);
}

void attention_backward(const py::array& q, const py::array& k, const py::array& v,
                        const Lengths& lengths, float scale, bool causal, const py::array& out,
                        const Floats& log_sums, const py::array& of_out, const py::array& of_q,
                        const py::array& of_k, const py::array& of_v) {
  const Attention call = attention_of(q, k, lengths, scale, causal);
  const Shape of_heads{call.heads, call.tokens(), call.head_dim};
  const Shape of_kv_heads{call.kv_heads, call.tokens(), call.head_dim};
  const auto q_rows = rows_of<const float>(q, "q", of_heads);
  const auto k_rows = rows_of<const float>(k, "k", of_kv_heads);
  const auto v_rows = rows_of<const float>(v, "v", of_kv_heads);
  const auto out_rows = rows_of<const float>(out, "out", of_heads);
  const auto of_out_rows = rows_of<const float>(of_out, "of_out", of_heads);
  const auto of_q_rows = rows_of<float>(of_q, "of_q", of_heads);
  const auto of_k_rows = rows_of<float>(of_k, "of_k", of_kv_heads);
  const auto of_v_rows = rows_of<float>(of_v, "of_v", of_kv_heads);
  const auto* sums = floats_of<const float>(log_sums, "log_sums", {call.heads, call.tokens()});
  const WithoutGil released;
  kernels::attention_backward(call, q_rows, k_rows, v_rows, out_rows, sums, of_out_rows, of_q_rows,
                              of_k_rows, of_v_rows);
}

Shape rows_and_width(const Floats& x) {
  if (x.ndim() != 2) throw BadArgument("x: shape must be [rows, width]");
  return {x.shape(0), x.shape(1)};
}

void rms_norm(const Floats& x, const Floats& weight, float eps, const Floats& scales,
              const Floats& out) {
  const Shape shape = rows_and_width(x);
  const kernels::RmsNorm call{shape[0],
                              shape[1],
                              eps,
                              elements<const float>(x, "x"),
                              floats_of<const float>(weight, "weight", {shape[1]}),
                              floats_of<float>(scales, "scales", {shape[0]}),
                              floats_of<float>(out, "out", shape)};
  const WithoutGil released;
  kernels::supported().rms_norm(call);
}

void rms_norm_backward(const Floats& x, const Floats& weight, const Floats& scales,
                       const Floats& of_out, const std::optional<Floats>& of_x,
                       const std::optional<Floats>& of_weight) {
  const Shape shape = rows_and_width(x);
  std::vector<float> scratch(static_cast<std::size_t>(shape[1]));
  const kernels::RmsNormBackward call{
      shape[0],
      shape[1],
      elements<const float>(x, "x"),
      floats_of<const float>(weight, "weight", {shape[1]}),
      floats_of<const float>(scales, "scales", {shape[0]}),
      floats_of<const float>(of_out, "of_out", shape),
      of_x ? floats_of<float>(*of_x, "of_x", shape) : nullptr,
      of_weight ? floats_of<float>(*of_weight, "of_weight", {shape[1]}) : nullptr,
      scratch.data()};
  const WithoutGil released;
  kernels::supported().rms_norm_backward(call);
}

void rotate(const py::array& x, const Floats& cos, const Floats& sin, const py::array& out,
            bool back) {
  if (x.ndim() != 3 || x.shape(2) % 2 != 0)
    throw BadArgument("x: shape must be [heads, tokens, head_dim], with an even head_dim");
  const Shape shape{x.shape(0), x.shape(1), x.shape(2)}, angles{shape[1], shape[2]};
  const kernels::Rotation call{shape[1],
                               shape[0],
                               shape[2],
                               rows_of<const float>(x, "x", shape),
                               floats_of<const float>(cos, "cos", angles),
                               floats_of<const float>(sin, "sin", angles),
                               rows_of<float>(out, "out", shape),
                               back};
  const WithoutGil released;
  kernels::supported().rotate(call);
}

Shape shape_of(const Floats& x) { return {x.shape(), x.shape() + x.ndim()}; }

void swiglu(const Floats& gate, const Floats& up, const Floats& out) {
  const Shape shape = shape_of(gate);
  const kernels::SwiGlu call{gate.size(), elements<const float>(gate, "gate"),
                             floats_of<const float>(up, "up", shape),
                             floats_of<float>(out, "out", shape)};
  const WithoutGil released;
  kernels::supported().swiglu(call);
}

void swiglu_backward(const Floats& gate, const Floats& up, const Floats& of_out,
                     const Floats& of_gate, const Floats& of_up) {
  const Shape shape = shape_of(gate);
  const kernels::SwiGluBackward call{gate.size(),
                                     elements<const float>(gate, "gate"),
                                     floats_of<const float>(up, "up", shape),
                                     floats_of<const float>(of_out, "of_out", shape),
                                     floats_of<float>(of_gate, "of_gate", shape),
                                     floats_of<float>(of_up, "of_up", shape)};
  const WithoutGil released;
  kernels::supported().swiglu_backward(call);
}

}  // namespace

void bind_kernels(py::module_& module) {
  // A converted array would be a copy, and what is written to it lost.
  const auto exact = [](const char* name) { return py::arg(name).noconvert(); };
  module.def("attention", attention, py::arg("q"), py::arg("k"), py::arg("v"), exact("lengths"),
             py::arg("scale"), py::arg("causal"), py::arg("out"), exact("log_sums"));
  module.def("attention_backward", attention_backward, py::arg("q"), py::arg("k"), py::arg("v"),
             exact("lengths"), py::arg("scale"), py::arg("causal"), py::arg("out"),
             exact("log_sums"), py::arg("of_out"), py::arg("of_q"), py::arg("of_k"),
             py::arg("of_v"));
  module.def("rms_norm", rms_norm, exact("x"), exact("weight"), py::arg("eps"), exact("scales"),
             exact("out"));
  module.def("rms_norm_backward", rms_norm_backward, exact("x"), exact("weight"), exact("scales"),
             exact("of_out"), exact("of_x"), exact("of_weight"));
  module.def("rotate", rotate, py::arg("x"), exact("cos"), exact("sin"), py::arg("out"),
             py::arg("back"));
  module.def("swiglu", swiglu, exact("gate"), exact("up"), exact("out"));
  module.def("swiglu_backward", swiglu_backward, exact("gate"), exact("up"), exact("of_out"),
             exact("of_gate"), exact("of_up"));
}

}  // namespace flowtrain::bindings
