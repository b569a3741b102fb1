"""The lowest sum of fill times within budgets, if no other time exceeds a ceiling."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy

from flowtrain.plan.allocation.problem import Block, Problem, Rows
from flowtrain.plan.arrays import FloatArray, IntArray


@dataclass(frozen=True, slots=True, eq=False)
class Front:
    """Pareto front of a module: with more GPUs, less fill time.

    Attributes:
        rows: Number of each row in its module.
        gpus: GPUs, ascending.
        fill_s: Fill time, descending.
    """

    rows: IntArray
    gpus: IntArray
    fill_s: FloatArray

    @classmethod
    def of(cls, block: Block, ceiling_s: float, update_s: float) -> Front:
        """The front of the rows whose other times are within these limits."""
        kept = numpy.flatnonzero((block.microbatch_s <= ceiling_s) & (block.update_s <= update_s))
        fill_s = block.fill_s[kept]
        if len(kept):
            before = numpy.minimum.accumulate(fill_s)[:-1]
            less = numpy.append(True, fill_s[1:] < before)
            kept, fill_s = kept[less], fill_s[less]
        return cls(block.rows[kept], block.gpus[kept], fill_s)

    def within(self, gpus: int, fill_s: float) -> Front:
        """The part of at most these GPUs, and below this fill time."""
        end = int(self.gpus.searchsorted(gpus, side="right"))
        begin = len(self.fill_s) - int(self.fill_s[::-1].searchsorted(fill_s))
        part = slice(begin, end)
        return Front(self.rows[part], self.gpus[part], self.fill_s[part])

    def __len__(self) -> int:
        return len(self.gpus)


def lowest_fill(
    problem: Problem,
    assignment: Sequence[int],
    *,
    ceiling_s: float = math.inf,
    update_s: float = math.inf,
    below_s: float = math.inf,
) -> Rows | None:
    """The choice with the lowest sum of fill times.

    Args:
        problem: The problem.
        assignment: Number of the budget of each module.
        ceiling_s: Limit of the microbatch times.
        update_s: Limit of the update times.
        below_s: What the sum must be below; a smaller value takes less time.

    Returns:
        Number of the row of each module, or None if there is no such choice.
    """
    fronts = []
    for blocks, budget in zip(problem.blocks, assignment, strict=True):
        fronts.append(Front.of(blocks[budget], ceiling_s, update_s))
        if not len(fronts[-1]):
            return None
    least_s = [float(front.fill_s[-1]) for front in fronts]
    others_s = [below_s - (sum(least_s) - own_s) for own_s in least_s]
    rows = [0] * len(fronts)
    for budget in set(assignment):
        members = [number for number, of in enumerate(assignment) if of == budget]
        needed = sum(int(fronts[number].gpus[0]) for number in members)
        limit = problem.limits[budget]
        parts = [
            fronts[n].within(limit - needed + int(fronts[n].gpus[0]), others_s[n]) for n in members
        ]
        picked = _pick(parts, limit)
        if picked is None:
            return None
        for number, part, at in zip(members, parts, picked, strict=True):
            rows[number] = int(part.rows[at])
    return rows


def _pick(fronts: Sequence[Front], limit: int) -> list[int] | None:
    """A point of each front with the lowest sum of fill times, on at most `limit` GPUs together.

    A dynamic program over numbers of GPUs. The front with the most points begins it, the others
    follow from the shortest to the longest; of the last one only the sum at the limit is needed.
    """
    if not all(len(front) for front in fronts):
        return None
    order = sorted(range(len(fronts)), key=lambda number: len(fronts[number]))
    order = [order[-1], *order[:-1]]
    unit = math.gcd(*(int(numpy.gcd.reduce(front.gpus)) for front in fronts))
    room = limit // unit
    gpus = [front.gpus // unit for front in fronts]
    sums = [numpy.full(room + 1, 0.0)]  # By GPUs of the fronts so far.
    for number in order[:-1]:
        sums.append(_merged(sums, gpus[number], fronts[number].fill_s))
    picked = [0] * len(fronts)
    for number, before in zip(reversed(order), reversed(sums), strict=True):
        left = room - gpus[number]
        total_s = numpy.where(left >= 0, fronts[number].fill_s + before[left], numpy.inf)
        at = int(total_s.argmin())
        if total_s[at] == numpy.inf:
            return None
        picked[number], room = at, int(left[at])
    return picked


def _merged(sums: Sequence[FloatArray], gpus: IntArray, fill_s: FloatArray) -> FloatArray:
    """Lowest sum by GPUs with one more front, shape [limit + 1]; infinite where none fits."""
    size = len(sums[-1])
    merged = numpy.full(size, numpy.inf)
    if len(sums) == 1:  # The first front: as many GPUs have the fill time of its last point.
        merged[gpus[0] :] = numpy.repeat(fill_s, numpy.diff(numpy.append(gpus, size)))
        return merged
    for number, time_s in zip(gpus.tolist(), fill_s.tolist(), strict=True):
        target = merged[number:]
        numpy.minimum(target, sums[-1][: size - number] + time_s, out=target)
    return merged
