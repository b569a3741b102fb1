"""Tables of measured times: for one label, from the units of a row."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from itertools import groupby
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from flowtrain.cost.curves import Curve, Multiples, Surface
from flowtrain.cost.layers import Counts, Unit
from flowtrain.cost.profiled import ProfileError

ROWS: dict[Unit, Unit] = {"pairs": "tokens", "vision_pairs": "vision_tokens"}
"""Tokens of the kinds of attention whose documents have any length."""

_CAUSAL_SHARE = 0.5
"""Share of the pairs of the decoder that `Family.counts` counts."""

_ROUNDING = 1e-6
"""Relative error of a size that is compared with a range."""


def unit_count(counts: Counts, unit: Unit) -> float:
    """How much of a unit there is."""
    return float(counts[Counts._fields.index(unit)])


class RowQuery(NamedTuple):
    """Query of a table.

    Attributes:
        counts: Of the row.
        documents: Tokens of each document; None if they are not known.
        check: Whether sizes outside of those that were measured are an error.
    """

    counts: Counts
    documents: Sequence[int] | None
    check: bool

    def of(self, unit: Unit) -> float:
        """How much of a unit it has."""
        return unit_count(self.counts, unit)

    def within(self, size: float, smallest: float, largest: float, name: str) -> None:
        """Refuse a size that was not measured, if that is to be checked.

        Raises:
            ProfileError: It is outside of the range.
        """
        if self.check and not smallest * (1 - _ROUNDING) <= size <= largest * (1 + _ROUNDING):
            raise ProfileError(
                f"{name}={size:g}: measured from {smallest:g} to {largest:g}; profile larger "
                "sizes, or ask for extrapolation"
            )


Times = NDArray[np.float64]
"""Seconds of the forward pass, of the backward pass of inputs alone, and of the backward pass."""


class Table(ABC):
    """Times of one label.

    Attributes:
        unit: What its sizes count.
    """

    unit: Unit

    @abstractmethod
    def seconds(self, row: RowQuery) -> tuple[Times, Times]:
        """Times of a row, and at the smallest size.

        Raises:
            ProfileError: A size is outside of those that were measured.
        """

    @abstractmethod
    def example(self) -> Curve:
        """A curve to show."""

    def summary(self) -> list[tuple[float, ...]]:
        """(size, forward, backward of inputs, backward of weights) at a few sizes."""
        curve = self.example()
        sizes = [curve.smallest, curve.sizes[len(curve.sizes) // 2], curve.largest]
        found: list[tuple[float, ...]] = []
        for size in dict.fromkeys(sizes):
            forward, backward_input, backward = (float(x) for x in curve(size))
            found.append((size, forward, backward_input, max(0.0, backward - backward_input)))
        return found


class Line(Table):
    """Over one unit."""

    def __init__(self, unit: Unit, curve: Curve) -> None:
        self.unit, self._curve = unit, curve

    def example(self) -> Curve:
        return self._curve

    def seconds(self, row: RowQuery) -> tuple[Times, Times]:
        size, curve = row.of(self.unit), self._curve
        if not size:
            return _NOTHING
        row.within(size, curve.smallest, curve.largest, self.unit)
        return curve(size), curve(curve.smallest)


class Shares(Table):
    """Over a unit, and the share of it that a second unit is.

    A share below the smallest measured one takes the time of that one.
    """

    def __init__(self, unit: Unit, second: Unit, surface: Surface) -> None:
        self.unit, self._second, self._surface = unit, second, surface
        curves = [curve for _, curve in surface.lines]
        self._smallest = min(curve.smallest for curve in curves)
        self._largest = max(curve.largest for curve in curves)

    def example(self) -> Curve:
        return self._surface.lines[-1][1]

    def seconds(self, row: RowQuery) -> tuple[Times, Times]:
        size, surface = row.of(self.unit), self._surface
        if not size:
            return _NOTHING
        row.within(size, self._smallest, self._largest, self.unit)
        share = max(surface.smallest, row.of(self._second) / size)
        return surface(size, share), surface(self._smallest, surface.smallest)


class DocumentRuns(Table):
    """Attention over documents.

    Args:
        unit: Pairs of its queries and keys.
        equal: Over the number of equal documents and their length.
        mixed: Over the number of documents and their mean length, where no two in a row are
            equal; None if one call computes all documents at once.
        largest: Maximum tokens of a row.
    """

    def __init__(self, unit: Unit, equal: Multiples, mixed: Surface | None, largest: int) -> None:
        self.unit, self._equal, self._mixed, self._largest = unit, equal, mixed, largest

    def example(self) -> Curve:
        """Over the length of a single document."""
        return self._equal.ones

    def seconds(self, row: RowQuery) -> tuple[Times, Times]:
        tokens = row.of(ROWS[self.unit])
        if not tokens:
            return _NOTHING
        equal, mixed = self._equal, self._mixed
        if row.documents is None or mixed is None:
            share = _CAUSAL_SHARE if self.unit == "pairs" else 1.0
            length = row.of(self.unit) / share / tokens
            runs = [(max(1.0, tokens / length), length)]
        else:
            runs = [(len(list(run)), length) for length, run in groupby(row.documents)]
        ones = equal.ones
        for _, length in runs:
            row.within(length, ones.smallest, ones.largest, f"{self.unit}, tokens of a document")
        row.within(tokens, 1, self._largest, ROWS[self.unit])
        times = np.sum([equal(count, length) for count, length in runs], axis=0)
        if mixed is not None and len(runs) > 1:
            mean = min(max(tokens / len(runs), mixed.smallest), mixed.largest)
            # A kernel for short documents takes less than their calls, joining takes more.
            times = times + mixed(len(runs), mean) - len(runs) * equal(1, mean)
        return times, ones(ones.smallest)


_NOTHING = (np.zeros(3), np.zeros(3))
"""Times of no work."""
