"""OmniBal's search for a partition."""

from __future__ import annotations

import heapq
import math

import numpy

from flowtrain.plan.arrays import FloatArray
from flowtrain.plan.partition.stages import StageTable

# Sum of squares of the stages' forward times, bytes sent, and 0 with the layer behind each stage.
_Prefix = tuple[float, int, tuple[int, ...]]


def omnibal(table: StageTable, *, trials: int = 10) -> list[int] | None:
    """Shift the cuts of an even partition by at most one layer, and keep the best of a few.

    The even partition ends each stage where its share of the forward time is reached. Of all
    partitions within one layer of each of its cuts, those with the lowest variance of forward
    times are tried; on equal variance, those that send the least. A trial is the modelled step,
    where OmniBal runs 20 iterations. A stage recomputes all of its layers or none, where OmniBal
    counts layers.

    Args:
        table: The stages.
        trials: Number of partitions to try.

    Returns:
        Number of the layer behind each stage, or None if no partition that was tried fits.

    Source: arXiv 2407.20761, from a secondary description; its code was not read.
    """
    problem = table.problem
    until = numpy.append(0.0, problem.layers.forward_s.cumsum())
    forward, backward = problem.layers.cut_bytes()
    sent = [0, *(forward + backward).tolist()]
    # The mean is fixed, so the sum of squares orders as the variance does. A prefix that is not
    # among the best `trials` with the same last cut begins none of the best partitions.
    prefixes: list[_Prefix] = [(0.0, 0, (0,))]
    for stage, cut in enumerate(_even(until, problem.stages), start=1):
        last = stage == problem.stages
        latest = len(problem.layers) - (problem.stages - stage)
        grown: list[_Prefix] = []
        for end in (cut,) if last else (cut - 1, cut, cut + 1):
            longer = [
                (squares + float(until[end] - until[ends[-1]]) ** 2, size + sent[end], (*ends, end))
                for squares, size, ends in prefixes
                if ends[-1] < end <= latest
            ]
            grown += heapq.nsmallest(trials, longer)
        prefixes = grown
    tried = [list(ends[1:]) for _, _, ends in heapq.nsmallest(trials, prefixes)]
    best = min(tried, key=table.step_s)
    return best if math.isfinite(table.step_s(best)) else None


def _even(until: FloatArray, stages: int) -> list[int]:
    """Number of the layer behind each stage, where the stage's share of the time is reached."""
    count = len(until) - 1
    ends: list[int] = []
    for stage in range(1, stages + 1):
        near = int(numpy.abs(until - until[-1] * stage / stages).argmin())
        ends.append(min(max(near, stage, ends[-1] + 1 if ends else 1), count - (stages - stage)))
    return ends
