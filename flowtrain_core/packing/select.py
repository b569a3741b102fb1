"""Chooses the samples of a step that may leave some of them to a later one."""

from __future__ import annotations

import numpy
from numpy.typing import NDArray

from flowtrain_core._C import packing as kernels
from flowtrain_core.packing.problem import IntArray

# If the bound is within this factor of the mean, no sample needs to wait.
_EVEN = 1.001


def oldest_first(
    tokens: IntArray, age: IntArray, *, priority: NDArray[numpy.int8], room: int
) -> IntArray:
    """Samples that a step takes while there is room: by priority, then the oldest.

    Args:
        tokens: Tokens of each sample, shape [num_samples].
        age: Steps that each sample has waited, shape [num_samples].
        priority: Lower goes first, shape [num_samples]; 0 must go, even where the room is exceeded.
        room: Tokens that the step should have, at most.

    Returns:
        Indices, ascending.
    """
    order = numpy.lexsort((numpy.arange(len(tokens)), -age, priority))
    total = numpy.cumsum(tokens[order])
    taken = (total <= room) | (priority[order] == 0)
    # What comes after the first that is too long may still fit.
    left = room - int(tokens[order][taken].sum())
    for place in numpy.flatnonzero(~taken):
        if left <= 0:
            break
        if tokens[order[place]] <= left:
            taken[place] = True
            left -= int(tokens[order[place]])
    return numpy.sort(order[taken])


def priorities(
    tokens: IntArray,
    cost: IntArray,
    must: NDArray[numpy.bool_],
    *,
    ranks: int,
    microbatches: int,
    max_tokens: int,
    room: int,
) -> NDArray[numpy.int8]:
    """Priorities that place very costly samples together, in every other step.

    A sample is very costly if the cap keeps other ranks from filling its slot. A slot with several
    such samples takes no longer than with one. So they wait, costliest first, as far as samples
    have to wait anyway; when one of them must go, all go.

    Args:
        tokens: Tokens of each sample, shape [num_samples].
        cost: Backbone cost of each sample, shape [num_samples].
        must: Whether it may not wait any longer, shape [num_samples].
        ranks: Data-parallel ranks.
        microbatches: Slots of each rank.
        max_tokens: Maximum tokens of a microbatch.
        room: Tokens that the step should have, at most.

    Returns:
        0 for samples that must go, 1 for very costly ones that go with them, 2 for the others, 3
        for very costly ones that wait; shape [num_samples].
    """
    priority = numpy.where(must, 0, 2).astype(numpy.int8)
    by_cost = numpy.argsort(-cost, kind="stable")

    def even(without: int) -> bool:
        """Whether the bound is about the mean without the `without` costliest samples."""
        rest = numpy.sort(by_cost[without:])
        bound = kernels.bound(
            tokens[rest], cost[rest], ranks, microbatches, max_tokens, "lockstep", thorough=False
        )
        return bool(bound * ranks <= _EVEN * float(cost[rest].sum()) + ranks)

    # Starts above the number of ranks: as many costly samples as ranks are even again.
    low, high = 0, min(2 * ranks, len(by_cost))
    while high < len(by_cost) and not even(high):
        low, high = high + 1, min(2 * high, len(by_cost))
    while low < high:
        middle = (low + high) // 2
        low, high = (low, middle) if even(middle) else (middle + 1, high)
    out = by_cost[:high]
    if must[out].any():
        priority[out[~must[out]]] = 1
    else:
        waiting = int(tokens.sum()) - room
        priority[out[numpy.cumsum(tokens[out]) <= waiting]] = 3
    return priority
