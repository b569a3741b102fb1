"""The scheduler of the FlowTrain paper: best fit, cost buckets, zig-zag."""

from __future__ import annotations

import numpy

from flowtrain_core._C import packing as kernels
from flowtrain_core.packing.policies._grid import renumbered, sums
from flowtrain_core.packing.problem import Layout, PlaceArray, Problem


def flowtrain(problem: Problem) -> Layout:
    """Pack by best fit as samples come, then assign packs to the ranks in zig-zag, by cost.

    A bucket is a run of the packs in descending order of cost. Rank and direction are kept from
    bucket to bucket: if each began at rank 0, as in the paper, ranks would get unequal counts. The
    cost of a pack is the sum over its samples, not that of its longest.

    Source: arXiv 2606.23087, section 3.4 and algorithm 1.
    """
    bins = kernels.best_fit(problem.tokens, problem.max_tokens)
    used = int(bins.max(initial=-1)) + 1
    order = numpy.argsort(-sums(problem.cost, bins, used), kind="stable")
    return zigzag(problem, renumbered(bins, order))


def zigzag(problem: Problem, bins: PlaceArray) -> Layout:
    """Assign bins to ranks 0..N-1, then N-1..0, and so on."""
    used = int(bins.max(initial=-1)) + 1
    turn, place = bins // problem.ranks, bins % problem.ranks
    rank = numpy.where(turn % 2 == 0, place, problem.ranks - 1 - place).astype(numpy.int32)
    slots = max(problem.microbatches, -(-used // problem.ranks))
    return Layout(slot=turn.astype(numpy.int32), rank=rank, microbatches=slots)
