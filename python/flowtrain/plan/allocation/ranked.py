"""The best allocations in order."""

from __future__ import annotations

import heapq
import itertools
from dataclasses import replace

from flowtrain.plan.allocation.exact import exact
from flowtrain.plan.allocation.problem import Problem, Rows


def ranked(problem: Problem, count: int) -> list[Rows]:
    """The `count` best choices, best first; fewer, if there are fewer.

    All choices but the best one are divided: those that differ in the first module; those that
    have its row there, and differ in the second; and so on. The best of each part waits in a queue;
    the part of the next best is divided in the same way.

    Source: Lawler (1972).
    """
    found: list[Rows] = []
    order = itertools.count()
    todo: list[tuple[float, int, Rows, Problem, int]] = []

    def add(part: Problem, fixed: int) -> None:
        rows = exact(part)
        if rows is not None:
            heapq.heappush(todo, (part.step_s(rows), next(order), rows, part, fixed))

    add(problem, 0)
    while todo and len(found) < count:
        _, _, rows, part, fixed = heapq.heappop(todo)
        found.append(rows)
        for number in range(fixed, len(rows)):
            add(_with(part, number, rows[number], chosen=False), number)
            part = _with(part, number, rows[number], chosen=True)
    return found


def _with(problem: Problem, number: int, row: int, *, chosen: bool) -> Problem:
    """The problem with this row of a module only, or with all others."""
    blocks = list(problem.blocks)
    left = {key: of.where((of.rows == row) == chosen) for key, of in blocks[number].items()}
    blocks[number] = {key: of for key, of in left.items() if len(of)}
    return replace(problem, blocks=blocks)
