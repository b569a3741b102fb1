"""Where encoder work goes, given where the backbone's goes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Literal

import numpy

from flowtrain_core._C import packing as kernels
from flowtrain_core.packing.problem import Layout, Problem

Coupling = Literal["prepass", "slot", "rigid"]

_NO_CAP = 1 << 40


def prepass(problem: Problem, layout: Layout) -> Layout:
    """Encode everything before the first slot, distributed over the ranks as evenly as possible.

    The backbone's schedule may then give ranks unequal encoder work. Embeddings take 2 * width
    bytes per visual token until they are used.
    """
    placed = numpy.flatnonzero(layout.slot >= 0)
    rank = numpy.full(len(problem), -1, numpy.int32)
    rank[placed] = _balanced_ranks(problem, placed)
    slot = numpy.where(layout.slot >= 0, 0, -1).astype(numpy.int32)
    return replace(layout, encoder_slot=slot, encoder_rank=rank)


def by_slot(problem: Problem, layout: Layout) -> Layout:
    """Encode a sample in its own slot, distributed over the ranks slot by slot.

    For runs that cannot hold a step's embeddings; uneven if a slot has few images per rank.
    """
    rank = numpy.full(len(problem), -1, numpy.int32)
    for slot in range(layout.microbatches):
        mine = numpy.flatnonzero(layout.slot == slot)
        rank[mine] = _balanced_ranks(problem, mine)
    return replace(layout, encoder_slot=layout.slot, encoder_rank=rank)


def rigid(problem: Problem, layout: Layout) -> Layout:
    """Encode a sample where its backbone work is."""
    return replace(layout, encoder_slot=layout.slot, encoder_rank=layout.rank)


def _balanced_ranks(problem: Problem, which: numpy.ndarray) -> numpy.ndarray:
    """Rank of each of some samples, by encoder cost alone."""
    assert problem.encoder_cost is not None
    cost = problem.encoder_cost[which]
    _, rank, _, _ = kernels.schedule(
        numpy.zeros_like(cost), cost, problem.ranks, 1, _NO_CAP, "accumulate"
    )
    return rank


COUPLINGS: dict[str, Callable[[Problem, Layout], Layout]] = {
    "prepass": prepass,
    "slot": by_slot,
    "rigid": rigid,
}
