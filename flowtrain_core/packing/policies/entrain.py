"""Entrain's hierarchical assignment with pairwise deferral."""

from __future__ import annotations

import numpy

from flowtrain_core.packing.policies._grid import sums
from flowtrain_core.packing.policies._partition import bottleneck_match, nearest_subset
from flowtrain_core.packing.problem import IntArray, Layout, Problem


def entrain(problem: Problem) -> Layout:
    """Balance encoder work by grouping, backbone work by letting some samples join the next slot.

    Replicas: by descending encoder work, each to the one with the least backbone work. Inside one:
    coarse samples (the fewest with half of the backbone work), then fine ones, each group by
    descending encoder work to the microbatch with the least of it. Then overloaded microbatches
    are paired with underloaded ones, and the subset nearest to half of the difference is
    deferred: its encoder output waits for the microbatch after, never longer.

    Without encoder costs the backbone's are used instead, and nothing needs to be deferred.

    Source: arXiv 2605.27918, section 4.3 and algorithm 3.
    """
    encoder = problem.cost if problem.encoder_cost is None else problem.encoder_cost
    replica = numpy.zeros(len(problem), numpy.int32)
    work = numpy.zeros(problem.ranks, numpy.int64)
    for i in numpy.argsort(-encoder, kind="stable"):
        replica[i] = work.argmin()
        work[replica[i]] += problem.cost[i]
    slots = problem.microbatches
    while True:
        groups = [
            _microbatches(problem, encoder, numpy.flatnonzero(replica == r), slots)
            for r in range(problem.ranks)
        ]
        if all(group is not None for group in groups):
            break
        slots += 1
    slot = numpy.full(len(problem), -1, numpy.int32)
    encoder_slot = slot.copy()
    for group in groups:
        assert group is not None
        which, first, then = group
        encoder_slot[which], slot[which] = first, then
    if problem.encoder_cost is None:
        return Layout(slot=slot, rank=replica, microbatches=slots)
    return Layout(
        slot=slot, rank=replica, microbatches=slots, encoder_slot=encoder_slot, encoder_rank=replica
    )


def _microbatches(
    problem: Problem, encoder: IntArray, mine: IntArray, slots: int
) -> tuple[IntArray, IntArray, IntArray] | None:
    """Samples of a replica, with the slots of their encoder and backbone parts.

    None if they do not fit into that many slots under the cap.
    """
    if not len(mine):
        return mine, mine, mine
    # More microbatches than multiples of the largest encoder load cannot be made even.
    even = max(1, int(encoder[mine].sum() // max(1, int(encoder[mine].max()))))
    for count in dict.fromkeys((min(slots, even), slots)):
        place = _greedy(problem, encoder, mine, count)
        if place is not None:
            then, order = _deferred(problem, mine, place, count)
            return mine, order[place], order[then]
    return None


def _greedy(problem: Problem, encoder: IntArray, mine: IntArray, count: int) -> IntArray | None:
    by_cost = mine[numpy.argsort(-problem.cost[mine], kind="stable")]
    half = numpy.cumsum(problem.cost[by_cost]) <= problem.cost[mine].sum() // 2
    coarse, fine = by_cost[half], by_cost[~half]
    place = numpy.zeros(len(problem), numpy.int64)
    loads, tokens = numpy.zeros(count, numpy.int64), numpy.zeros(count, numpy.int64)
    for part in (coarse, fine):
        for i in part[numpy.argsort(-encoder[part], kind="stable")]:
            fits = tokens + problem.tokens[i] <= problem.max_tokens
            if not fits.any():
                return None
            # Where encoder work is equal, the microbatch with fewer tokens.
            open_ = numpy.flatnonzero(fits)
            place[i] = open_[numpy.lexsort((tokens[open_], loads[open_]))[0]]
            loads[place[i]] += encoder[i]
            tokens[place[i]] += problem.tokens[i]
    return place[mine]


def _deferred(
    problem: Problem, mine: IntArray, place: IntArray, count: int
) -> tuple[IntArray, IntArray]:
    """Backbone microbatch of each sample, and the slot of each microbatch."""
    cost, tokens = problem.cost[mine], problem.tokens[mine]
    loads, used = sums(cost, place, count), sums(tokens, place, count)
    by_load = numpy.argsort(-loads, kind="stable")
    over, under = by_load[: count // 2], by_load[count // 2 :]
    then = place.copy()
    moves: dict[tuple[int, int], IntArray] = {}
    paired = numpy.zeros((len(over), len(under)), numpy.int64)
    for row, high in enumerate(over):
        inside = numpy.flatnonzero(place == high)
        for column, low in enumerate(under):
            chosen = inside[nearest_subset(cost[inside], int(loads[high] - loads[low]) // 2)]
            if used[low] + tokens[chosen].sum() > problem.max_tokens:
                chosen = chosen[:0]
            given = int(cost[chosen].sum())
            moves[row, column] = chosen
            paired[row, column] = max(loads[high] - given, loads[low] + given)
    match = bottleneck_match(paired, loads[over]) if len(over) else numpy.zeros(0, int)
    order = numpy.empty(count, numpy.int64)
    alone = [int(low) for column, low in enumerate(under) if column not in set(match.tolist())]
    position = 0
    for row, high in enumerate(over):
        low = int(under[match[row]])
        if paired[row, match[row]] < loads[high]:
            then[moves[row, int(match[row])]] = low
        order[high], order[low] = position, position + 1
        position += 2
    for low in alone:
        order[low] = position
        position += 1
    return then, order
