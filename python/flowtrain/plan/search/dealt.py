"""Which ranks of an encoder compute the inputs of a step.

`deal_apart` and `deal_together` have the rules of the runtime, those of `steps.items`, on sizes
alone: inputs of a sample are equal, and those of a step may be many thousands. `deal_in_each` is
for encoders on their own that gather weights in each microbatch, and `most_in_chunks` for layouts
that no runtime runs.
"""

from __future__ import annotations

import heapq
from dataclasses import dataclass, fields

import numpy

from flowtrain.plan.arrays import FloatArray, IntArray

_WORTH_MOVING = 0.05  # As in `steps.items`.
_SMALL = 0.02


@dataclass(frozen=True, slots=True, eq=False)
class Inputs:
    """Inputs of the samples of a step, in the order in which backbone ranks read them.

    Attributes:
        reader: Backbone rank that reads the inputs of each sample, shape [num_samples].
        slot: Its microbatch, of the same shape.
        count: Inputs of each sample, of the same shape.
        tokens: Tokens of each of them, of the same shape.
        cost: Cost of each of them, of the same shape.
    """

    reader: IntArray
    slot: IntArray
    count: IntArray
    tokens: FloatArray
    cost: FloatArray


def deal_apart(inputs: Inputs, *, ranks: int, slots: int, item_tokens: int) -> FloatArray:
    """Load of each rank of an encoder on its own in each microbatch, shape [num_slots, num_ranks].

    Items have inputs of one microbatch of one reader, and at most `item_tokens` tokens or an equal
    share of those of the step. Those of the whole step are dealt, the most costly first, to the
    rank with the least load.

    Args:
        inputs: The inputs.
        ranks: Ranks of the encoder.
        slots: Microbatches of the step.
        item_tokens: Maximum tokens of an item; a larger input is alone.
    """
    total = float(inputs.count @ inputs.tokens)
    most = min(float(item_tokens), max(1.0, float(numpy.ceil(total / ranks))))
    items = _items(inputs, most)
    loads = numpy.zeros((slots, ranks))
    heap = [(0.0, rank) for rank in range(ranks)]
    # The sort is stable: of equal ones, the first in the order of the microbatches comes first.
    for cost, slot in sorted(items, key=lambda item: -item[0]):
        load, rank = heap[0]
        loads[slot, rank] += cost
        heapq.heapreplace(heap, (load + cost, rank))
    return loads


def _items(inputs: Inputs, most: float) -> list[tuple[float, int]]:
    """Cost and microbatch of each item, in the order of the microbatches."""
    found: list[tuple[float, int]] = []
    order = numpy.lexsort((inputs.reader, inputs.slot))
    last, room, cost = (-1, -1), 0.0, 0.0
    columns = (inputs.slot, inputs.reader, inputs.count, inputs.tokens, inputs.cost)
    rows = zip(*(column[order].tolist() for column in columns), strict=True)
    for slot, reader, count, tokens, each in rows:
        if count and (slot, reader) != last:
            if cost:
                found.append((cost, last[0]))
            last, room, cost = (slot, reader), most, 0.0
        while count:
            fitting = min(count, max(0, int(room // tokens))) if tokens else count
            if not fitting and not cost:
                fitting = 1  # A larger input is an item of its own.
            cost, room, count = cost + fitting * each, room - fitting * tokens, count - fitting
            if count:
                found.append((cost, slot))
                room, cost = most, 0.0
    if cost:
        found.append((cost, last[0]))
    return found


def deal_in_each(inputs: Inputs, *, ranks: int, slots: int, item_tokens: int) -> FloatArray:
    """As `deal_apart` for ranks that meet in each microbatch, since they gather weights.

    A rank that has more in one microbatch is waited for there, even if it has less in another, so
    that the rule of the runtime, which balances steps, would be a bad one. The inputs of each
    microbatch are dealt on their own.
    """
    loads = numpy.zeros((slots, ranks))
    for slot in range(slots):
        here = inputs.slot == slot
        columns = {field.name: getattr(inputs, field.name)[here] for field in fields(inputs)}
        dealt = deal_apart(Inputs(**columns), ranks=ranks, slots=slots, item_tokens=item_tokens)
        loads[slot] = dealt[slot]
    return loads


def deal_together(inputs: Inputs, load: FloatArray, *, slots: int) -> FloatArray:
    """Cost of what each rank with both modules encodes, shape [num_slots, num_ranks].

    Each encodes what it reads. If the load of a rank exceeds the mean by 5 %, inputs of its last
    microbatches move to those with the least load.

    Args:
        inputs: The inputs.
        load: Load of both modules on each rank, if it encodes what it reads, shape [num_ranks].
        slots: Microbatches of the step.
    """
    own: FloatArray = numpy.zeros((slots, len(load)))
    numpy.add.at(own, (inputs.slot, inputs.reader), inputs.count * inputs.cost)
    left = load.copy()
    mean = float(load.mean())
    givers = numpy.flatnonzero(load > (1 + _WORTH_MOVING) * mean)
    for giver in sorted(givers.tolist(), key=lambda rank: -load[rank]):
        _give(inputs, giver, left, own, mean)
    return own


def _give(inputs: Inputs, giver: int, load: FloatArray, own: FloatArray, mean: float) -> None:
    """Move inputs of a rank to others, one after the other, until its load is the mean."""
    mine = numpy.flatnonzero(inputs.reader == giver)
    taker = giver
    for sample in mine[numpy.argsort(-inputs.slot[mine], kind="stable")].tolist():
        cost = float(inputs.cost[sample])
        for _ in range(int(inputs.count[sample])):
            if load[giver] <= mean:
                return
            if taker == giver or load[taker] + cost > mean:
                taker = int(load.argmin())
            if load[taker] + cost < load[giver]:
                for loads in (load, own[inputs.slot[sample]]):
                    loads[giver] -= cost
                    loads[taker] += cost


def most_in_chunks(inputs: Inputs, ranks: int, chunk_slots: int) -> float:
    """The sum over chunks of the highest load, with inputs dealt one by one, as by no runtime.

    The most costly come first, each to the rank with the least load. Inputs below 2 % of an even
    share are not dealt: they fill up the ranks to that share, so that the result is at most 2 % of
    it too low, and others are few.

    Args:
        inputs: The inputs.
        ranks: Ranks to which they are dealt.
        chunk_slots: Microbatches of a chunk.
    """
    chunk = inputs.slot // chunk_slots
    most = numpy.bincount(chunk, weights=inputs.count * inputs.cost) / ranks
    large = (inputs.count > 0) & (inputs.cost > _SMALL * most[chunk])
    for number in numpy.unique(chunk[large]):
        here = large & (chunk == number)
        costs = numpy.repeat(inputs.cost[here], inputs.count[here])
        most[number] = max(most[number], _highest(costs, ranks))
    return float(most.sum())


def _highest(costs: FloatArray, ranks: int) -> float:
    """The highest load of ranks to which inputs are dealt, the most costly first."""
    descending = numpy.sort(costs)[::-1].tolist()
    # Each rank has one of the first; reversed they ascend, and are a heap.
    loads = descending[:ranks][::-1]
    for cost in descending[ranks:]:
        heapq.heapreplace(loads, loads[0] + cost)
    return float(max(loads))
