"""FlowTrain's policy for encoder and backbone work that stay together."""

from __future__ import annotations

import sys
from fractions import Fraction

import numpy

from flowtrain_core._C import packing as kernels
from flowtrain_core.packing.policies._grid import fewest_that_hold, in_bin_order
from flowtrain_core.packing.problem import IntArray, Layout, PlaceArray, Problem

_ROUNDS = 4
_FINE = 1 << 32  # With a largest cost of this many units, rounding to one unit is negligible.
_MOST_SUM = 1 << 61


def flowtrain_rigid(problem: Problem, *, rounds: int = _ROUNDS, work: int | None = None) -> Layout:
    """Balance encoder and backbone together: a small largest load of either in any bin.

    For pipelines that encode a sample in the slot and on the rank of its backbone work.

    Args:
        problem: The step.
        rounds: Rounds of pairing all bins.
        work: Maximum number of exchanges and divisions to consider, 2 to 5 ns each; None takes
            half a millisecond for 256 samples, and in proportion.
    """
    if work is None:
        work = 900 * len(problem)
    cost, encoder = in_one_unit(problem)

    def pack(slots: int) -> PlaceArray | None:
        bins = kernels.balance_two(
            problem.tokens,
            cost,
            encoder,
            slots * problem.ranks,
            problem.max_tokens,
            rounds,
            work,
        )
        return bins if (bins >= 0).all() else None

    return coupled(in_bin_order(problem, fewest_that_hold(problem.microbatches, pack)))


def in_one_unit(problem: Problem) -> tuple[IntArray, IntArray]:
    """Costs of backbone and encoder as integers of one unit, each of shape [num_samples].

    Raises:
        ValueError: The largest cost of the encoder is beyond any number of the backbone's unit.
    """
    if problem.encoder_cost is None or not len(problem):
        return problem.cost, numpy.zeros(len(problem), numpy.int64)
    share = Fraction(problem.encoder_unit) / Fraction(problem.unit)
    if not problem.cost.any() or not problem.encoder_cost.any():
        share = Fraction(1)  # Zeros are the same in any unit.
    more, less = share.as_integer_ratio()
    sums = int(problem.cost.sum()) * less, int(problem.encoder_cost.sum()) * more
    if max(sums) < _MOST_SUM:
        return problem.cost * less, problem.encoder_cost * more
    if share * int(problem.encoder_cost.max()) > sys.float_info.max:
        largest = problem.encoder_cost.max() * problem.encoder_unit
        raise ValueError(
            f"encoder_cost: its largest is {largest:.3g}, and cost counts in units of "
            f"{problem.unit:.3g}: they are too far apart to be balanced together, by more than "
            f"{sys.float_info.max:.3g}; give both costs in the same unit"
        )
    encoder = problem.encoder_cost * float(share)
    if encoder.sum() < _MOST_SUM and max(problem.cost.max(), encoder.max()) >= _FINE:
        return problem.cost, numpy.rint(encoder).astype(numpy.int64)
    # The backbone's unit is too coarse for the encoder, or too fine for 62 bits.
    both, _ = kernels.integer_costs(numpy.concatenate([problem.cost, encoder]), "encoder_cost")
    return both[: len(problem)], both[len(problem) :]


def coupled(layout: Layout) -> Layout:
    """The same layout, encoded where it is computed."""
    return Layout(
        slot=layout.slot,
        rank=layout.rank,
        microbatches=layout.microbatches,
        encoder_slot=layout.slot,
        encoder_rank=layout.rank,
    )
