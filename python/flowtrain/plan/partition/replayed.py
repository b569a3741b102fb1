"""The exact partition, improved by replay."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Sequence

from flowtrain.plan.partition.exact import exact
from flowtrain.plan.partition.replay import replay_stages
from flowtrain.plan.partition.stages import StageTable

_ROUNDING = 1e-12  # As in exact.py.


def replayed(table: StageTable) -> list[int] | None:
    """Shift cuts of the exact partition while a replay of 1F1B gets shorter.

    A move shifts one cut, or several in a row, by one layer in one direction. The best of all moves
    is made until none helps: a local optimum.

    Returns:
        Number of the layer behind each stage, or None if no partition fits.
    """
    ends = exact(table)
    if ends is None:
        return None
    best_s = _replay_s(table, ends, math.inf)
    while True:
        moves = [(_replay_s(table, move, best_s), move) for move in _moves(ends)]
        moved_s, moved = min(moves, default=(math.inf, ends))
        if moved_s >= best_s * (1 - _ROUNDING):
            return ends
        ends, best_s = moved, moved_s


def _moves(ends: Sequence[int]) -> Iterator[list[int]]:
    """Partitions with one cut, or several in a row, shifted by one layer."""
    for first, end in itertools.combinations(range(len(ends)), 2):
        for shift in (-1, 1):
            moved = [*ends[:first], *(cut + shift for cut in ends[first:end]), *ends[end:]]
            if all(before < after for before, after in itertools.pairwise([0, *moved])):
                yield moved


def _replay_s(table: StageTable, ends: Sequence[int], limit_s: float) -> float:
    """Seconds of a step by replay; infinite if a stage does not fit, or if it exceeds the limit."""
    microbatches = table.problem.microbatches
    # A stage runs all microbatches, after the forward and before the backward passes of one in the
    # stages before it.
    before_s = 0.0
    for seconds in table.stage_s(ends):
        if before_s + microbatches * seconds > limit_s or math.isinf(seconds):
            return math.inf
        before_s += seconds
    return replay_stages(table.stages(ends), microbatches=microbatches)
