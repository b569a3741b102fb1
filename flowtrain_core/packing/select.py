"""Which samples of a window belong to a step that may leave some to the next."""

from __future__ import annotations

import numpy
from numpy.typing import NDArray

from flowtrain_core.packing.problem import IntArray


def oldest_first(
    tokens: IntArray, age: IntArray, *, must: NDArray[numpy.bool_], room: int
) -> IntArray:
    """Samples that a step takes: those that must go, then the oldest others while there is room.

    Args:
        tokens: Tokens of each sample, shape [num_samples].
        age: Steps that each sample has waited, shape [num_samples].
        must: Whether it may not wait any longer, shape [num_samples].
        room: Tokens that the step should have, at most; those that must go may exceed it.

    Returns:
        Indices, ascending.
    """
    order = numpy.lexsort((numpy.arange(len(tokens)), -age, ~must))
    total = numpy.cumsum(tokens[order])
    taken = (total <= room) | must[order]
    # What comes after the first that is too long may still fit.
    left = room - int(tokens[order][taken].sum())
    for place in numpy.flatnonzero(~taken):
        if left <= 0:
            break
        if tokens[order[place]] <= left:
            taken[place] = True
            left -= int(tokens[order[place]])
    return numpy.sort(order[taken])
