"""Algorithms of other packers that FlowTrain's own does not use, in NumPy."""

from __future__ import annotations

import heapq

import numpy
from numpy.typing import NDArray

from flowtrain_core.packing.problem import IntArray, PlaceArray

_UNITS = 65536  # Sums that `nearest_subset` tells apart.


def next_fit(first: IntArray, first_cap: int, second: IntArray, second_cap: int) -> PlaceArray:
    """Pack in the order given, and open the next bin when either sum would exceed its cap.

    Args:
        first: One size of each sample, shape [num_samples].
        first_cap: Maximum sum of a bin.
        second: Another size of each sample, shape [num_samples].
        second_cap: Maximum sum of a bin.

    Returns:
        Bin of each sample.
    """
    bins = numpy.empty(len(first), numpy.int32)
    totals = [numpy.concatenate([[0], numpy.cumsum(sizes)]) for sizes in (first, second)]
    begin = number = 0
    while begin < len(first):
        ends = (
            int(numpy.searchsorted(total, total[begin] + cap, side="right")) - 1
            for total, cap in zip(totals, (first_cap, second_cap), strict=True)
        )
        end = max(begin + 1, min(ends))
        bins[begin:end] = number
        begin, number = end, number + 1
    return bins


def difference(values: IntArray, parts: int, *, equal_count: bool = False) -> PlaceArray:
    """Split values into parts of nearly equal sums by the largest differencing method.

    The two most uneven partial splits are joined, the largest part of one with the smallest of the
    other, until one split is left. Takes O(n parts log parts) time and O(n parts) memory.

    Args:
        values: Shape [n].
        parts: How many.
        equal_count: Whether all parts get as many values, or one more.

    Returns:
        Part of each value.

    Source:
        Karmarkar and Karp (1982).
    """
    order = numpy.argsort(-values, kind="stable")
    each = parts if equal_count else 1
    number = -(-len(order) // each)
    if number == 0:
        return numpy.zeros(0, numpy.int32)
    # Sums of each split's parts, descending, and the group that each value belongs to.
    padded = numpy.zeros((number, parts), numpy.int64)
    flat = numpy.concatenate([values[order], numpy.zeros(number * each - len(order), numpy.int64)])
    padded[:, :each] = flat.reshape(number, each)
    splits = list(padded)
    # For each split: which group is at each place; and for each join, where the groups went.
    joins: list[tuple[int, int, NDArray[numpy.intp]]] = []
    heap = [(int(split[-1] - split[0]), index) for index, split in enumerate(splits)]
    heapq.heapify(heap)
    while len(heap) > 1:
        _, a = heapq.heappop(heap)
        _, b = heapq.heappop(heap)
        joined = splits[a] + splits[b][::-1]
        places = numpy.argsort(-joined, kind="stable")
        splits[a] = joined[places]
        splits[b] = splits[b][:0]
        joins.append((a, b, places))
        heapq.heappush(heap, (int(splits[a][-1] - splits[a][0]), a))
    # Back from the last join: the part in which each place of each split ended.
    ended: dict[int, NDArray[numpy.intp]] = {heap[0][1]: numpy.arange(parts)}
    for a, b, places in reversed(joins):
        at = numpy.empty(parts, numpy.intp)
        at[places] = ended[a]
        ended[a], ended[b] = at, at[::-1]
    part = numpy.empty(len(values), numpy.int32)
    for index in range(number):
        mine = order[index * each : (index + 1) * each]
        part[mine] = ended[index][: len(mine)]
    return part


def nearest_subset(values: IntArray, target: int) -> NDArray[numpy.bool_]:
    """Choose values whose sum is nearest to a target, by dynamic programming.

    Exact while the values sum to at most 65,536; else they are rounded to 65,536ths of their sum.

    Returns:
        Whether each value is chosen.
    """
    chosen = numpy.zeros(len(values), numpy.bool_)
    total = int(values.sum())
    if total == 0 or target <= 0:
        return chosen
    unit = max(1.0, total / _UNITS)
    weights = numpy.floor(values / unit + 0.5).astype(numpy.int64)
    # For each sum: the value that first reached it, from which the subset is read back.
    last = numpy.full(int(weights.sum()) + 1, -1, numpy.int32)
    reached = numpy.zeros(len(last), numpy.bool_)
    reached[0] = True
    for index, weight in enumerate(weights.tolist()):
        if weight == 0:
            continue
        new = reached[:-weight] & ~reached[weight:]
        last[weight:][new] = index
        reached[weight:] |= new
    sums = numpy.flatnonzero(reached)
    wanted = int(target / unit + 0.5)
    best = int(sums[numpy.abs(sums - wanted).argmin()])
    while best > 0:
        chosen[last[best]] = True
        best -= int(weights[last[best]])
    return chosen


def bottleneck_match(paired: IntArray, alone: IntArray) -> NDArray[numpy.int32]:
    """Match overloaded rows with underloaded columns, such that the largest load is minimal.

    Args:
        paired: The larger load of each pair after the row gave to the column, [rows, columns].
        alone: The load of a row that gives nothing, [rows].

    Returns:
        Column of each row; rows that gain nothing get one of the free columns, or -1.

    Source:
        Bisection and augmenting paths; Entrain, arXiv 2605.27918, algorithm 3.
    """
    rows, columns = paired.shape
    limits = numpy.unique(numpy.concatenate([paired.ravel(), alone]))
    low, high = 0, max(0, len(limits) - 1)
    while low < high:
        middle = (low + high) // 2
        if _matched(paired, alone, int(limits[middle])) is None:
            low = middle + 1
        else:
            high = middle
    row_of = _matched(paired, alone, int(limits[low])) if len(limits) else None
    column_of = numpy.full(rows, -1, numpy.int32)
    for column, row in enumerate(row_of or ()):
        if row >= 0:
            column_of[row] = column
    free = iter(numpy.setdiff1d(numpy.arange(columns), column_of))
    for row_alone in numpy.flatnonzero(column_of < 0):
        column_of[row_alone] = next(free, -1)
    return column_of


def _matched(paired: IntArray, alone: IntArray, limit: int) -> list[int] | None:
    """Row of each column, such that no load exceeds the limit; None where there is none."""
    allowed = paired <= limit
    row_of = [-1] * paired.shape[1]

    def augment(row: int, seen: set[int]) -> bool:
        for column in numpy.flatnonzero(allowed[row]).tolist():
            if column in seen:
                continue
            seen.add(column)
            if row_of[column] < 0 or augment(row_of[column], seen):
                row_of[column] = row
                return True
        return False

    if all(augment(row, set()) for row in numpy.flatnonzero(alone > limit).tolist()):
        return row_of
    return None
