"""DFLOP's online scheduler: two modules, exact within a time limit, else longest first."""

from __future__ import annotations

from typing import Any

import numpy

from flowtrain_core._C import packing as kernels
from flowtrain_core.packing.policies._grid import fewest_that_hold, in_bin_order
from flowtrain_core.packing.policies.rigid import coupled, in_one_unit
from flowtrain_core.packing.problem import IntArray, Layout, PlaceArray, Problem


def dflop(problem: Problem, *, exact: bool = False, time_limit_s: float = 10.0) -> Layout:
    """Find a small largest load of either module in any bin.

    Longest first by the larger of the two loads, the fallback of the paper. With `exact`, CP-SAT
    improves on that within a time limit, so its result depends on the machine.

    Raises:
        ModuleNotFoundError: `exact`, and OR-tools is not installed: pip install ortools.

    Source: arXiv 2603.25120, section 3.4; `ilp_data_sched` of BDAI-Research/DFLOP.
    """
    cost, encoder = in_one_unit(problem)

    def pack(slots: int) -> PlaceArray | None:
        bins = kernels.balance_two(
            problem.tokens, cost, encoder, slots * problem.ranks, problem.max_tokens
        )
        return bins if (bins >= 0).all() else None

    bins = fewest_that_hold(problem.microbatches, pack)
    if exact:
        bins = _cp_sat(problem, cost, encoder, bins, time_limit_s)
    return coupled(in_bin_order(problem, bins))


def _cp_sat(
    problem: Problem, cost: IntArray, encoder: IntArray, start: PlaceArray, time_limit_s: float
) -> PlaceArray:
    """Bins by CP-SAT, no worse than those to start from."""
    from ortools.sat.python import cp_model

    count = max(problem.bins, int(start.max(initial=0)) + 1)
    # Costs are integers: 10,000 units per mean bin; the released code has 10,000 per second.
    total = max(1, int(cost.sum()), int(encoder.sum()))
    scale = 10_000 * count / total
    loads = [[round(int(v) * scale) for v in values] for values in (cost, encoder)]
    model: Any = cp_model.CpModel()
    inside = [[model.NewBoolVar("") for _ in range(count)] for _ in range(len(problem))]
    longest = model.NewIntVar(0, sum(max(a, b) for a, b in zip(*loads, strict=True)), "")
    for i, row in enumerate(inside):
        model.AddExactlyOne(row)
        for b, var in enumerate(row):
            model.AddHint(var, int(start[i]) == b)
    for b in range(count):
        column = [row[b] for row in inside]
        for values in loads:
            model.Add(sum(v * x for v, x in zip(values, column, strict=True)) <= longest)
        tokens = zip(problem.tokens.tolist(), column, strict=True)
        model.Add(sum(t * x for t, x in tokens) <= problem.max_tokens)
    model.Minimize(longest)
    solver: Any = cp_model.CpSolver()
    solver.parameters.max_time_in_seconds = time_limit_s
    solver.parameters.random_seed = 42
    if solver.Solve(model) not in (cp_model.OPTIMAL, cp_model.FEASIBLE):
        return start
    return numpy.array(
        [next(b for b, x in enumerate(row) if solver.BooleanValue(x)) for row in inside],
        numpy.int32,
    )
