"""Two modules whose work on a sample cannot be parted."""

from __future__ import annotations

import numpy

from flowtrain_core._C import packing as kernels
from flowtrain_core.packing.policies._grid import fewest_that_hold, in_turn
from flowtrain_core.packing.problem import IntArray, Layout, PlaceArray, Problem

_ROUNDS = 4


def flowtrain_rigid(problem: Problem, *, rounds: int = _ROUNDS, work: int | None = None) -> Layout:
    """Make the largest load of either module in any bin small, encoder and backbone together.

    For pipelines that encode a sample in the slot and on the rank of its backbone work.

    Args:
        problem: Its encoder costs are in the unit of its costs.
        rounds: Of pairing all bins.
        work: Exchanges and divisions to look at, of 2 to 5 ns each; None is what takes half a
            millisecond for 256 samples, and in proportion.
    """
    if work is None:
        work = 900 * len(problem)
    encoder = encoder_in_costs(problem)

    def pack(slots: int) -> PlaceArray | None:
        bins = kernels.balance_two(
            problem.tokens,
            problem.cost,
            encoder,
            slots * problem.ranks,
            problem.token_cap,
            rounds,
            work,
        )
        return bins if (bins >= 0).all() else None

    return coupled(in_turn(problem, fewest_that_hold(problem.microbatches, pack)))


def encoder_in_costs(problem: Problem) -> IntArray:
    """Encoder costs in the unit of the backbone's, shape [num_samples]; zeros without them."""
    if problem.encoder_cost is None:
        return numpy.zeros(len(problem), numpy.int64)
    return numpy.rint(problem.encoder_cost * problem.encoder_share).astype(numpy.int64)


def coupled(layout: Layout) -> Layout:
    """The same layout, encoded where it is computed."""
    return Layout(
        slot=layout.slot,
        rank=layout.rank,
        microbatches=layout.microbatches,
        encoder_slot=layout.slot,
        encoder_rank=layout.rank,
    )
