"""Longest processing time first, under a token cap, on ranks x slots bins."""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from dataclasses import dataclass


class PackingError(ValueError):
    """A sample cannot be packed; the message names it and the limit."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Assignment:
    """Where each sample of a step goes.

    Attributes:
        slots: Microbatch slots of every rank, at least 1.
        rank: Rank of each sample, shape [num_samples].
        slot: Slot of each sample, shape [num_samples].
    """

    slots: int
    rank: tuple[int, ...]
    slot: tuple[int, ...]


def balance(
    tokens: Sequence[int], cost: Sequence[float], *, ranks: int, token_cap: int
) -> Assignment:
    """Deal samples to the fewest slots that hold them, costliest first to the cheapest bin.

    Args:
        tokens: Tokens of each sample, shape [num_samples].
        cost: Cost of each sample in any unit, shape [num_samples].
        ranks: Data-parallel ranks; each gets the same number of slots.
        token_cap: Most tokens of one slot of one rank.

    Returns:
        An assignment in which no bin exceeds the cap. Ties fall to the lower index, so that
        every caller with the same input gets the same answer.

    Raises:
        PackingError: A sample is longer than token_cap.

    Source: Graham (1969); the makespan is at most 4/3 of the best where the cap does not bind.
    """
    for index, length in enumerate(tokens):
        if length > token_cap:
            raise PackingError(
                f"sample {index} of the step: {length} tokens exceed token_cap={token_cap}; "
                "raise train.microbatch_tokens or leave the sample out"
            )
    slots = max(1, -(-sum(tokens) // (ranks * token_cap)))
    order = sorted(range(len(tokens)), key=lambda i: (-cost[i], -tokens[i], i))
    while (bins := _deal(tokens, cost, order, ranks * slots, token_cap)) is None:
        slots += 1
    return Assignment(
        slots=slots,
        rank=tuple(b % ranks for b in bins),
        slot=tuple(b // ranks for b in bins),
    )


def _deal(
    tokens: Sequence[int], cost: Sequence[float], order: Sequence[int], bins: int, cap: int
) -> list[int] | None:
    """Bin of each sample, or None where the samples do not fit into that many bins."""
    heap = [(0.0, b) for b in range(bins)]
    room = [cap] * bins
    place = [0] * len(tokens)
    for i in order:
        too_full = []
        while heap and room[heap[0][1]] < tokens[i]:
            too_full.append(heapq.heappop(heap))
        if not heap:
            return None
        load, b = heap[0]
        heapq.heapreplace(heap, (load + cost[i], b))
        room[b] -= tokens[i]
        place[i] = b
        for entry in too_full:
            heapq.heappush(heap, entry)
    return place
