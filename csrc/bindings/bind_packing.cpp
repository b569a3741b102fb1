#include <pybind11/numpy.h>
#include <pybind11/stl.h>

#include <string>

#include "base/error.hpp"
#include "bindings/bindings.hpp"
#include "packing/input.hpp"
#include "packing/schedule.hpp"

namespace py = pybind11;

namespace flowtrain::bindings {
namespace {

using packing::Grid;
using packing::Objective;
using packing::Samples;
using packing::Scaled;

using Ints = py::array_t<std::int64_t, py::array::c_style>;
using Floats = py::array_t<double, py::array::c_style>;

template <class Array>
auto span_of(const Array& array, const char* name) {
  if (array.ndim() != 1) {
    throw BadArgument(std::string(name) + ": shape must be [num_samples], not of " +
                      std::to_string(array.ndim()) + " dimensions");
  }
  return std::span(array.data(), static_cast<std::size_t>(array.size()));
}

template <class T>
py::array_t<T> array_of(const std::vector<T>& values) {
  return py::array_t<T>(static_cast<py::ssize_t>(values.size()), values.data());
}

/// Integer costs of what was given: int64 as it is, float64 on a scale.
Scaled integers(const py::array& cost, const char* name) {
  if (py::isinstance<Floats>(cost)) {
    return packing::scale(span_of(cost.cast<Floats>(), name), name);
  }
  if (py::isinstance<Ints>(cost)) {
    return packing::reduce(span_of(cost.cast<Ints>(), name), name);
  }
  throw BadArgument(std::string(name) + ": dtype must be int64 or float64, not " +
                    std::string(py::str(py::object(cost.dtype()))));
}

Objective objective_of(const std::string& name) {
  if (name == "lockstep") return Objective::kLockstep;
  if (name == "free") return Objective::kFree;
  if (name == "makespan") return Objective::kMakespan;
  throw BadArgument("objective '" + name + "': choose from lockstep, free, makespan");
}

Grid grid_of(std::uint32_t ranks, std::uint32_t microbatches, std::int64_t token_cap) {
  return {ranks, microbatches, token_cap};
}

py::tuple integer_costs(const py::array& cost, const char* name) {
  const Scaled scaled = integers(cost, name);
  return py::make_tuple(array_of(scaled.cost), scaled.unit);
}

void check(const Ints& tokens, const Ints& cost, std::uint32_t ranks, std::uint32_t microbatches,
           std::int64_t token_cap) {
  packing::check({span_of(tokens, "tokens"), span_of(cost, "cost")},
                 grid_of(ranks, microbatches, token_cap));
}

py::tuple schedule(const Ints& tokens, const Ints& cost, std::uint32_t ranks,
                   std::uint32_t microbatches, std::int64_t token_cap, const std::string& objective,
                   bool refined, bool closed) {
  const Samples samples{span_of(tokens, "tokens"), span_of(cost, "cost")};
  const Grid grid = grid_of(ranks, microbatches, token_cap);
  const Objective which = objective_of(objective);
  packing::check(samples, grid);
  packing::Schedule out(0);
  {
    const py::gil_scoped_release release;
    out = packing::schedule(samples, grid, which, refined, closed);
  }
  return py::make_tuple(array_of(out.slot), array_of(out.rank), out.bound, out.unplaced);
}

std::int64_t bound(const Ints& tokens, const Ints& cost, std::uint32_t ranks,
                   std::uint32_t microbatches, std::int64_t token_cap,
                   const std::string& objective) {
  const Samples samples{span_of(tokens, "tokens"), span_of(cost, "cost")};
  const Grid grid = grid_of(ranks, microbatches, token_cap);
  packing::check(samples, grid);
  return packing::bound(samples, grid, objective_of(objective));
}

}  // namespace

void bind_packing(py::module_& module) {
  py::module_ room = module.def_submodule("packing", "Kernels of schedulers, on NumPy arrays.");
  const auto tokens = py::arg("tokens"), cost = py::arg("cost"), ranks = py::arg("ranks"),
             microbatches = py::arg("microbatches"), token_cap = py::arg("token_cap"),
             objective = py::arg("objective");
  room.def("integer_costs", &integer_costs, cost, py::arg("name"));
  room.def("check", &check, tokens, cost, ranks, microbatches, token_cap);
  room.def("schedule", &schedule, tokens, cost, ranks, microbatches, token_cap, objective,
           py::arg("refined") = true, py::arg("closed") = true);
  room.def("bound", &bound, tokens, cost, ranks, microbatches, token_cap, objective);
}

}  // namespace flowtrain::bindings
