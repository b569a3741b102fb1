"""From bins to slots and ranks, the same for all policies that pack first."""

from __future__ import annotations

from collections.abc import Callable

import numpy
from numpy.typing import NDArray

from flowtrain_core.packing.problem import IntArray, Layout, PlaceArray, Problem


def in_bin_order(problem: Problem, bins: PlaceArray) -> Layout:
    """Assign bins to slots and ranks by number: bin b is slot b // ranks of rank b % ranks."""
    used = int(bins.max(initial=-1)) + 1
    slots = max(problem.microbatches, -(-used // problem.ranks))
    none = bins < 0
    slot = numpy.where(none, -1, bins // problem.ranks).astype(numpy.int32)
    rank = numpy.where(none, -1, bins % problem.ranks).astype(numpy.int32)
    return Layout(slot=slot, rank=rank, microbatches=slots)


def renumbered(bins: PlaceArray, order: NDArray[numpy.integer]) -> PlaceArray:
    """Bins renumbered: `order` lists the old numbers in their new order."""
    new = numpy.empty(len(order), numpy.int32)
    new[order] = numpy.arange(len(order), dtype=numpy.int32)
    return numpy.where(bins < 0, -1, new[bins]).astype(numpy.int32)


def sums(values: IntArray, bins: NDArray[numpy.integer], count: int) -> IntArray:
    """Sum of the values in each bin, shape [count]."""
    out = numpy.zeros(count, numpy.int64)
    numpy.add.at(out, bins, values)
    return out


def fewest_that_hold(first: int, pack: Callable[[int], PlaceArray | None]) -> PlaceArray:
    """Result of `pack` for the smallest number, from `first` on, for which it is not None."""
    parts = first
    while (found := pack(parts)) is None:
        parts += 1
    return found
