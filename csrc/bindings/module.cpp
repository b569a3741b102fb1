#include "bindings/bindings.hpp"

PYBIND11_MODULE(_C, module) {
  module.doc() = "FlowTrain's core: pool, ring and channel.";
  module.attr("__version__") = FLOWTRAIN_VERSION;
  flowtrain::bindings::bind_errors(module);
  flowtrain::bindings::bind_pool(module);
  flowtrain::bindings::bind_channel(module);
  flowtrain::bindings::bind_inspect(module);
  flowtrain::bindings::bind_cuda(module);
  flowtrain::bindings::bind_packing(module);
  flowtrain::bindings::bind_torture(module);
}
