#include "bindings/ops/bindings.hpp"

PYBIND11_MODULE(_ops, module) {
  module.doc() = "Operators of models: on one core of a CPU, and launches of CUDA kernels.";
  flowtrain::bindings::bind_kernels(module);
  flowtrain::bindings::bind_rows(module);
  flowtrain::bindings::bind_rotary(module);
}
