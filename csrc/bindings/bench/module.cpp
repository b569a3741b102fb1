#include "bindings/bench/bindings.hpp"

PYBIND11_MODULE(_bench, module) {
  module.doc() = "Measurements and fault injection of the core, for `flowtrain bench`.";
  flowtrain::bindings::bind_measure(module);
  flowtrain::bindings::bind_torture(module);
}
