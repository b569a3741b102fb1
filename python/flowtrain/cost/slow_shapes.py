"""Finds the shapes that run slow, from the times of microbatches that hold several documents."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy
from numpy.typing import NDArray

IntArray = NDArray[numpy.int64]
FloatArray = NDArray[numpy.float64]

_WIDTH = 64
# A factor counts if its excess is so many standard errors; of 400 shapes that run as predicted, one
# in two fits has such an excess by chance.
_SIGMAS = 3.0
_MIN_EXCESS = 0.05
_MIN_DOCUMENTS = 2
# Rows of a rank from which on the rank has a rate of its own.
_MIN_ROWS = 16
_PASSES = 4
# Standard deviations of a normal distribution in one median absolute deviation, and the standard
# error of a median in that of a mean.
_PER_MAD = 1.4826
_MEDIAN_ERROR = 1.2533


def shape_of(length: int) -> int:
    """Shape of a document: the multiple of 64 tokens to which a kernel would round its length up.

    Kernels choose their tiles by multiples of 64, 128 or 256, so that lengths of one shape take one
    path. Wider shapes mix slow and fast lengths, and the longest documents, which weigh most, mix
    first if widths grow with the length.

    Args:
        length: Tokens of a document, at least 1.
    """
    return -(-length // _WIDTH)


def lengths_of(shape: int) -> range:
    """Lengths of the documents of a shape, in tokens."""
    return range((shape - 1) * _WIDTH + 1, shape * _WIDTH + 1)


@dataclass(frozen=True, slots=True)
class MeasuredRow:
    """A microbatch that a rank has computed.

    Attributes:
        rank: The rank.
        shapes: Shape of each document (`shape_of`), shape [num_documents].
        cost: Predicted cost of each document without corrections, in any one unit, above 0.
        seconds: Measured time of the microbatch, without waits.
    """

    rank: int
    shapes: tuple[int, ...]
    cost: tuple[float, ...]
    seconds: float


class Rows:
    """Measured rows as arrays.

    Attributes:
        row: Row of each document, in order, shape [num_documents].
        shapes: Shape of each document.
        cost: Predicted cost of each document.
        ranks: Rank of each row, shape [num_rows].
        seconds: Measured time of each row.
    """

    def __init__(self, rows: Sequence[MeasuredRow]) -> None:
        self.row = numpy.repeat(numpy.arange(len(rows)), [len(row.shapes) for row in rows])
        self.shapes = numpy.array([s for row in rows for s in row.shapes], numpy.int64)
        self.cost = numpy.array([c for row in rows for c in row.cost], numpy.float64)
        self.ranks = numpy.array([row.rank for row in rows], numpy.int64)
        self.seconds = numpy.array([row.seconds for row in rows], numpy.float64)

    def __len__(self) -> int:
        return len(self.seconds)

    @classmethod
    def joined(cls, parts: Iterable[Rows]) -> Rows:
        """The rows of all parts."""
        every = list(parts)
        made = cls([])
        firsts = numpy.cumsum([0, *(len(part) for part in every)])
        made.row = numpy.concatenate([p.row + f for p, f in zip(every, firsts, strict=False)])
        for name in ("shapes", "cost", "ranks", "seconds"):
            setattr(made, name, numpy.concatenate([getattr(part, name) for part in every]))
        return made

    def predicted(self, factors: dict[int, float]) -> FloatArray:
        """Cost of each row under the factors of some shapes, shape [num_rows]."""
        cost = self.cost
        if factors:
            known = numpy.array(sorted(factors), numpy.int64)
            values = numpy.array([factors[shape] for shape in known.tolist()])
            place = numpy.minimum(numpy.searchsorted(known, self.shapes), len(known) - 1)
            cost = cost * numpy.where(known[place] == self.shapes, values[place], 1.0)
        return numpy.bincount(self.row, weights=cost, minlength=len(self)).astype(numpy.float64)


def slow_shapes(rows: Rows) -> dict[int, float]:
    """Factor by which the documents of each slow shape take longer than their cost says.

    A row takes rate x sum of cost x factor, with one rate for each rank, and noise. The factors are
    fitted one after the other to the deviations that the other factors leave, in a few passes: each
    is a weighted median, so that rows that were slow for another reason do not count more than
    others. A shape has a factor if its excess is above 5 % and above three standard errors, and at
    least two documents show it.

    Args:
        rows: At least one row; each has a document.

    Returns:
        Factors above 1 by shape; all other shapes run as predicted.
    """
    shapes, place = numpy.unique(rows.shapes, return_inverse=True)
    plain = rows.predicted({})
    # One entry for each shape of each row, in the order of shapes.
    pairs, entry = numpy.unique(place * len(rows) + rows.row, return_inverse=True)
    row = pairs % len(rows)
    share = numpy.bincount(entry, weights=rows.cost) / plain[row]
    bounds = numpy.searchsorted(pairs, numpy.arange(len(shapes) + 1) * len(rows))
    documents = numpy.bincount(place)
    columns = [
        (shape, slice(*bounds[shape : shape + 2]))
        for shape in numpy.flatnonzero(documents >= _MIN_DOCUMENTS).tolist()
    ]
    excess = numpy.zeros(len(shapes))
    for _ in range(_PASSES):
        explained = numpy.bincount(row, weights=share * excess[pairs // len(rows)])
        rates = rank_rates(rows, plain * (1 + explained))
        left = rows.seconds / (rates * plain) - 1 - explained
        spread = _PER_MAD * float(numpy.median(numpy.abs(left - numpy.median(left))))
        for shape, own in columns:
            weights, mine = share[own], row[own]
            before = excess[shape]
            value = weighted_median(left[mine] / weights + before, weights)
            error = _MEDIAN_ERROR * spread / float(numpy.sqrt((weights**2).sum()))
            excess[shape] = value if value > max(_MIN_EXCESS, _SIGMAS * error) else 0.0
            left[mine] -= weights * (excess[shape] - before)
    return {
        int(shapes[shape]): 1 + float(excess[shape]) for shape in numpy.flatnonzero(excess).tolist()
    }


def rank_rates(rows: Rows, cost: FloatArray) -> FloatArray:
    """Seconds per cost on the rank of each row: medians over the rank's rows, shape [num_rows].

    A rank with few rows has the rate of all ranks.

    Args:
        rows: The rows.
        cost: Cost of each row, shape [num_rows].
    """
    ratios = rows.seconds / cost
    rates = numpy.full(len(rows), numpy.median(ratios))
    for rank in numpy.unique(rows.ranks).tolist():
        own = rows.ranks == rank
        if own.sum() >= _MIN_ROWS:
            rates[own] = numpy.median(ratios[own])
    return rates


def weighted_median(values: FloatArray, weights: FloatArray) -> float:
    """The lowest value up to which lies at least half of all weight; shapes [num_values]."""
    order = numpy.argsort(values, kind="stable")
    below = numpy.cumsum(weights[order])
    return float(values[order[numpy.searchsorted(below, below[-1] / 2)]])
