"""A lower bound of the step that does not rest on the search."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy

from flowtrain.plan.allocation.fills import lowest_fill
from flowtrain.plan.allocation.problem import Block, Problem, Rows


def relaxed_s(problem: Problem, rows: Rows, *, slices: int = 16) -> float:
    """A step that no choice is below, at most that of the given one.

    Two terms are lowered, and what is left is minimized exactly. Of the updates, only that of the
    module that updates last in the given choice counts. The longest microbatch time becomes the
    lower end of a slice, within slices of equal width from the lowest time of any choice up.

    Args:
        problem: The problem.
        rows: A choice; a better one makes the slices narrower.
        slices: Number of slices; more of them raise the bound.
    """
    step_s = problem.step_s(rows)
    relaxed = _with_one_update(problem, rows)
    shortest_s = problem.shortest_s()

    def fill_s(ceiling_s: float, below_s: float) -> float:
        """The lowest sum of fill times and this update, infinite if it is not below the limit."""
        found = math.inf
        for assignment in relaxed.assignments():
            best = lowest_fill(relaxed, assignment, ceiling_s=ceiling_s, below_s=below_s)
            if best is not None:
                found = min(found, relaxed.fill_s(best))
        return found

    least_s = fill_s(math.inf, math.inf)
    if not problem.waits:
        return min(least_s, step_s)
    # With a longer time than the last one, the step is not below the given one.
    last_s = (step_s - least_s) / problem.waits
    if last_s <= shortest_s:
        return step_s
    ends = numpy.linspace(shortest_s, last_s, slices + 1).tolist()
    bound_s = step_s
    for low_s, high_s in zip((shortest_s, *ends[:-1]), ends, strict=True):
        waits_s = problem.waits * low_s
        bound_s = min(bound_s, fill_s(high_s, bound_s - waits_s) + waits_s)
    return bound_s


def _with_one_update(problem: Problem, rows: Rows) -> Problem:
    """The problem with one module's update as part of its fill time, and no other updates."""
    chosen = zip(problem.modules, rows, strict=True)
    updates = [float(module.update_s[row]) for module, row in chosen]
    last = updates.index(max(updates))
    modules, blocks = list(problem.modules), list(problem.blocks)
    module = modules[last]
    modules[last] = module = replace(module, fill_s=module.fill_s + module.update_s)
    blocks[last] = {budget: Block.of(module, of.rows) for budget, of in blocks[last].items()}
    return replace(problem, modules=modules, blocks=blocks)
