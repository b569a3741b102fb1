#include <pybind11/numpy.h>
#include <pybind11/stl.h>

#include <algorithm>
#include <numeric>
#include <optional>
#include <string>

#include "base/error.hpp"
#include "bindings/core/bindings.hpp"
#include "bindings/gil.hpp"
#include "packing/bins.hpp"
#include "packing/input.hpp"
#include "packing/order.hpp"
#include "packing/place.hpp"
#include "packing/schedule.hpp"
#include "packing/search.hpp"
#include "packing/two_modules.hpp"

namespace py = pybind11;

namespace flowtrain::bindings {
namespace {

using packing::Grid;
using packing::Objective;
using packing::Samples;

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

py::array_t<std::int32_t> array_of(std::span<const std::int32_t> values) {
  return py::array_t<std::int32_t>(static_cast<py::ssize_t>(values.size()), values.data());
}

/// Integer costs and their unit: int64 divided by the common divisor, float64 scaled.
py::tuple integer_costs(const py::array& cost, const char* name) {
  Ints whole(cost.size());
  const std::span out(whole.mutable_data(), static_cast<std::size_t>(whole.size()));
  double unit = 1.0;
  if (py::isinstance<Floats>(cost)) {
    unit = packing::scale(span_of(cost.cast<Floats>(), name), out, name);
  } else if (py::isinstance<Ints>(cost)) {
    unit = packing::reduce(span_of(cost.cast<Ints>(), name), out, name);
  } else {
    throw BadArgument(std::string(name) + ": dtype must be int64 or float64, not " +
                      std::string(py::str(py::object(cost.dtype()))));
  }
  return py::make_tuple(whole, unit);
}

Objective objective_of(const std::string& name) {
  if (name == "lockstep") return Objective::kLockstep;
  if (name == "accumulate") return Objective::kAccumulate;
  if (name == "max-microbatch") return Objective::kMaxMicrobatch;
  if (name == "pipeline") return Objective::kPipeline;
  throw BadArgument("objective '" + name +
                    "': choose from lockstep, accumulate, max-microbatch, pipeline");
}

Grid grid_of(std::uint32_t ranks, std::uint32_t microbatches, std::int64_t max_tokens,
             std::uint32_t stages) {
  return {ranks, microbatches, max_tokens, stages};
}

void check(const Ints& tokens, const Ints& cost, std::uint32_t ranks, std::uint32_t microbatches,
           std::int64_t max_tokens, std::uint32_t stages) {
  packing::check({span_of(tokens, "tokens"), span_of(cost, "cost")},
                 grid_of(ranks, microbatches, max_tokens, stages));
}

py::tuple schedule(const Ints& tokens, const Ints& cost, std::uint32_t ranks,
                   std::uint32_t microbatches, std::int64_t max_tokens,
                   const std::string& objective, std::uint32_t stages, bool refined,
                   bool place_all) {
  const Samples samples{span_of(tokens, "tokens"), span_of(cost, "cost")};
  const Grid grid = grid_of(ranks, microbatches, max_tokens, stages);
  const Objective which = objective_of(objective);
  packing::check(samples, grid);
  packing::Schedule out(0);
  {
    const WithoutGil release;
    out = packing::schedule(samples, grid, which, refined, place_all);
  }
  return py::make_tuple(array_of(out.slot), array_of(out.rank), out.bound, out.unplaced);
}

std::int64_t bound(const Ints& tokens, const Ints& cost, std::uint32_t ranks,
                   std::uint32_t microbatches, std::int64_t max_tokens,
                   const std::string& objective, std::uint32_t stages, bool thorough) {
  const Samples samples{span_of(tokens, "tokens"), span_of(cost, "cost")};
  const Grid grid = grid_of(ranks, microbatches, max_tokens, stages);
  const Objective which = objective_of(objective);
  packing::check(samples, grid);
  const WithoutGil release;
  return packing::bound(samples, grid, which, thorough);
}

py::tuple search_bins(const Ints& tokens, std::uint32_t bins, std::int64_t max_tokens) {
  const auto lengths = span_of(tokens, "tokens");
  packing::check({lengths, lengths}, {bins, 1, max_tokens});
  packing::Search found;
  {
    const WithoutGil release;
    found = packing::search_bins(lengths, bins, max_tokens);
  }
  return py::make_tuple(found.impossible, found.tries);
}

std::vector<std::int32_t> signed_bins(const std::vector<std::uint32_t>& bins) {
  return {bins.begin(), bins.end()};  // kNone becomes -1.
}

py::array_t<std::int32_t> bins_of(const std::vector<std::uint32_t>& bins) {
  return array_of(signed_bins(bins));
}

std::vector<std::uint32_t> order_of(const std::optional<Ints>& order, std::size_t count) {
  std::vector<std::uint32_t> out(count);
  std::iota(out.begin(), out.end(), 0U);
  if (!order) return out;
  const auto given = span_of(*order, "order");
  out.resize(given.size());
  for (std::size_t i = 0; i < given.size(); ++i) {
    if (given[i] < 0 || static_cast<std::size_t>(given[i]) >= count) {
      throw BadArgument("order[" + std::to_string(i) + "]=" + std::to_string(given[i]) +
                        ": must be an index of " + std::to_string(count) + " samples");
    }
    out[i] = static_cast<std::uint32_t>(given[i]);
  }
  return out;
}

py::array_t<std::int32_t> longest_first(const Ints& tokens, const Ints& cost, std::uint32_t bins,
                                        std::int64_t max_tokens) {
  const Samples samples{span_of(tokens, "tokens"), span_of(cost, "cost")};
  packing::check(samples, {bins, 1, max_tokens});
  const std::vector<std::int64_t> targets(bins);
  packing::Bins placed(samples, bins);
  packing::place(placed, packing::order_by_cost(samples), targets, max_tokens);
  return bins_of({placed.bin_of().begin(), placed.bin_of().end()});
}

py::array_t<std::int32_t> best_fit(const Ints& tokens, std::int64_t max_tokens,
                                   const std::optional<Ints>& order) {
  const auto lengths = span_of(tokens, "tokens");
  packing::check({lengths, lengths}, {1, 1, max_tokens});
  return bins_of(packing::best_fit(lengths, order_of(order, lengths.size()), max_tokens));
}

py::array_t<std::int32_t> balance_two(const Ints& tokens, const Ints& cost,
                                      const Ints& encoder_cost, std::uint32_t bins,
                                      std::int64_t max_tokens, std::uint32_t rounds,
                                      std::uint64_t work) {
  const Samples samples{span_of(tokens, "tokens"), span_of(cost, "cost")};
  const auto encoder = span_of(encoder_cost, "encoder_cost");
  const Grid grid{bins, 1, max_tokens};
  packing::check(samples, grid);
  packing::check({samples.tokens, encoder}, grid);
  if (packing::sum(samples.cost) > packing::kMaxSum - packing::sum(encoder)) {
    throw BadArgument("cost and encoder_cost: together they exceed 2^62; give a larger unit");
  }
  std::vector<std::uint32_t> found;
  {
    const WithoutGil release;
    found = packing::balance_two(samples, encoder, grid, rounds, work);
  }
  return bins_of(found);
}

}  // namespace

void bind_packing(py::module_& module) {
  py::module_ room = module.def_submodule("packing", "Kernels of schedulers, on NumPy arrays.");
  const auto tokens = py::arg("tokens"), cost = py::arg("cost"), ranks = py::arg("ranks"),
             microbatches = py::arg("microbatches"), max_tokens = py::arg("max_tokens"),
             objective = py::arg("objective");
  const auto stages = py::arg("stages") = 1;
  room.def("integer_costs", &integer_costs, cost, py::arg("name"));
  room.def("check", &check, tokens, cost, ranks, microbatches, max_tokens, stages);
  room.def("schedule", &schedule, tokens, cost, ranks, microbatches, max_tokens, objective, stages,
           py::arg("refined") = true, py::arg("place_all") = true);
  room.def("search_bins", &search_bins, tokens, py::arg("bins"), max_tokens);
  room.def("longest_first", &longest_first, tokens, cost, py::arg("bins"), max_tokens);
  room.def("best_fit", &best_fit, tokens, max_tokens, py::arg("order") = py::none());
  room.def("balance_two", &balance_two, tokens, cost, py::arg("encoder_cost"), py::arg("bins"),
           max_tokens, py::arg("rounds") = 0, py::arg("work") = 0);
  room.def("bound", &bound, tokens, cost, ranks, microbatches, max_tokens, objective, stages,
           py::arg("thorough") = true);
}

}  // namespace flowtrain::bindings
