"""The scheduler of the FlowTrain paper: best fit, cost buckets, zig-zag."""

from __future__ import annotations

import numpy

from flowtrain_core._C import packing as kernels
from flowtrain_core.packing.policies._grid import renumbered, sums
from flowtrain_core.packing.problem import Layout, PlaceArray, Problem


def flowtrain(problem: Problem) -> Layout:
    """Pack by best fit as samples come, then deal packs of like cost to the ranks in zig-zag.

    Buckets of like cost are runs of the packs by descending cost. The cursor of rank and direction
    is carried from bucket to bucket: begun anew at rank 0, as printed, ranks would get unequal
    counts. The cost of a pack is the sum of its samples', not of its longest.

    Source: arXiv 2606.23087, section 3.4 and algorithm 1.
    """
    bins = kernels.best_fit(problem.tokens, problem.max_tokens)
    used = int(bins.max(initial=-1)) + 1
    order = numpy.argsort(-sums(problem.cost, bins, used), kind="stable")
    return zigzag(problem, renumbered(bins, order))


def zigzag(problem: Problem, bins: PlaceArray) -> Layout:
    """Deal bins 0..N-1, then N-1..0, and so on."""
    used = int(bins.max(initial=-1)) + 1
    turn, place = bins // problem.ranks, bins % problem.ranks
    rank = numpy.where(turn % 2 == 0, place, problem.ranks - 1 - place).astype(numpy.int32)
    slots = max(problem.microbatches, -(-used // problem.ranks))
    return Layout(slot=turn.astype(numpy.int32), rank=rank, microbatches=slots)
