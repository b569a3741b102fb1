"""Balancers of bins: longest processing time, and largest differencing at equal counts."""

from __future__ import annotations

import numpy

from flowtrain_core._C import packing as kernels
from flowtrain_core.packing.policies._grid import fewest_that_hold, in_bin_order, sums
from flowtrain_core.packing.policies._partition import difference
from flowtrain_core.packing.problem import Layout, PlaceArray, Problem


def longest_first(problem: Problem) -> Layout:
    """Costliest sample first, into the cheapest bin of the whole grid that has room.

    Source: Graham (1969); as VeOmni and MindSpeed-MM balance ranks, after OrchMLLM.
    """

    def pack(slots: int) -> PlaceArray | None:
        bins = kernels.longest_first(
            problem.tokens, problem.cost, slots * problem.ranks, problem.max_tokens
        )
        return bins if (bins >= 0).all() else None

    return in_bin_order(problem, fewest_that_hold(problem.microbatches, pack))


def equal_count_differencing(problem: Problem) -> Layout:
    """Equal counts per rank by largest differencing, then each rank's microbatches by it again.

    More microbatches are used until none is over the cap. Light ones go to both ends.

    Source: verl, `verl/utils/seqlen_balancing.py`.
    """
    # Samples that cost nothing would pile up in one part, whatever its tokens.
    cost = numpy.maximum(problem.cost, 1)
    rank = difference(cost, problem.ranks, equal_count=True)
    mine = [numpy.flatnonzero(rank == r) for r in range(problem.ranks)]

    def pack(slots: int) -> PlaceArray | None:
        slot = numpy.zeros(len(problem), numpy.int32)
        for own in mine:
            part = difference(cost[own], slots)
            if sums(problem.tokens[own], part, slots).max() > problem.max_tokens:
                return None
            slot[own] = _light_at_both_ends(sums(cost[own], part, slots))[part]
        return slot

    found = fewest_that_hold(problem.microbatches, pack)
    slots = max(problem.microbatches, int(found.max(initial=-1)) + 1)
    return Layout(slot=found, rank=rank, microbatches=slots)


def _light_at_both_ends(loads: numpy.ndarray) -> PlaceArray:
    """New place of each microbatch: the heaviest in the middle."""
    order = numpy.argsort(-loads, kind="stable")
    from_middle = numpy.abs(numpy.arange(len(loads)) - (len(loads) - 1) / 2)
    places = numpy.argsort(from_middle, kind="stable")
    new = numpy.empty(len(loads), numpy.int32)
    new[order] = places
    return new
