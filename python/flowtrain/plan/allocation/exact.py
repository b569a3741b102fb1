"""The best allocation: bisection over ceilings of the longest microbatch and update times."""

from __future__ import annotations

import heapq
import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass

from flowtrain.plan.allocation.fills import lowest_fill
from flowtrain.plan.allocation.problem import Problem, Rows
from flowtrain.plan.arrays import FloatArray

# Two allocations whose steps differ by less are equal: sums in another order round differently.
ROUNDING = 1e-12


@dataclass(frozen=True, kw_only=True, slots=True)
class _Box:
    """Allocations of one assignment by their longest times, as ranges of numbers of ceilings.

    Attributes:
        assignment: Number of the budget of each module.
        ceilings: The first and the last number of the longest microbatch time.
        updates: The same for the longest update time.
    """

    assignment: tuple[int, ...]
    ceilings: tuple[int, int]
    updates: tuple[int, int]


def exact(problem: Problem, *, below_s: float = math.inf) -> Rows | None:
    """Minimize the step.

    With ceilings on microbatch and update times, a dynamic program gives the lowest sum of fill
    times. Lower ceilings never lower that sum. So the sum at the upper ends of a box of ceilings,
    plus (microbatches - 1) times the lower end of its microbatch times and the lower end of its
    update times, bounds all allocations in the box. The box with the lowest bound is split until no
    bound is below the best step found.

    Args:
        problem: The problem.
        below_s: What the step must be below.

    Returns:
        Number of the row of each module, or None if there is no such choice.
    """
    waits, updates = problem.waits, problem.updates
    # One microbatch waits for none, so that one ceiling is enough.
    ceilings = problem.ceilings if waits else problem.ceilings[-1:]
    waits_s = waits * ceilings
    best: Rows | None = None
    best_s = below_s
    order = itertools.count()
    todo: list[tuple[float, int, _Box]] = []

    def least_s(box: _Box) -> float:
        return float(waits_s[box.ceilings[0]] + updates[box.updates[0]])

    def add(box: _Box, fill_s: float) -> None:
        bound_s = fill_s + least_s(box)
        if bound_s < best_s * (1 - ROUNDING):
            heapq.heappush(todo, (bound_s, next(order), box))

    for assignment in problem.assignments():
        whole = _Box(
            assignment=assignment,
            ceilings=(0, len(ceilings) - 1),
            updates=(0, len(updates) - 1),
        )
        add(whole, 0.0)
    while todo and todo[0][0] < best_s * (1 - ROUNDING):
        _, _, box = heapq.heappop(todo)
        rows = lowest_fill(
            problem,
            box.assignment,
            ceiling_s=float(ceilings[box.ceilings[1]]),
            update_s=float(updates[box.updates[1]]),
            below_s=best_s - least_s(box),
        )
        if rows is None:
            continue
        step_s = problem.step_s(rows)
        if step_s < best_s:
            best, best_s = rows, step_s
        chosen = list(zip(problem.modules, rows, strict=True))
        fill_s = problem.fill_s(rows)
        # At ceilings from its own longest times up to the upper ends, this choice is the best.
        longest = _number(ceilings, [float(module.microbatch_s[row]) for module, row in chosen])
        latest = _number(updates, [float(module.update_s[row]) for module, row in chosen])
        low, high = box.ceilings
        below = (low, longest - 1), box.updates
        beside = (max(low, longest), high), (box.updates[0], latest - 1)
        for shorter, earlier in (below, beside):
            for half, other in _halves(waits_s, shorter, updates, earlier):
                add(_Box(assignment=box.assignment, ceilings=half, updates=other), fill_s)
    return best


def _number(values: FloatArray, times_s: Sequence[float]) -> int:
    """Number of the longest time."""
    return int(values.searchsorted(max(times_s)))


_Range = tuple[int, int]


def _halves(
    waits_s: FloatArray, ceilings: _Range, updates_s: FloatArray, updates: _Range
) -> list[tuple[_Range, _Range]]:
    """A box cut in two at the middle of its longer side, in seconds of the step."""
    if ceilings[0] > ceilings[1] or updates[0] > updates[1]:
        return []
    width_s = waits_s[ceilings[1]] - waits_s[ceilings[0]]
    height_s = updates_s[updates[1]] - updates_s[updates[0]]
    if width_s == height_s == 0:
        return [(ceilings, updates)]
    if width_s >= height_s:
        return [(part, updates) for part in _cut(waits_s, *ceilings)]
    return [(ceilings, part) for part in _cut(updates_s, *updates)]


def _cut(values: FloatArray, low: int, high: int) -> list[_Range]:
    middle = (values[low] + values[high]) / 2
    cut = min(max(int(values.searchsorted(middle, side="right")), low + 1), high)
    return [(low, cut - 1), (cut, high)]
