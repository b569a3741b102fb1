"""Interpolation of measured times over sizes."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from itertools import groupby

import numpy as np
from numpy.typing import NDArray

Values = tuple[float, ...]

_SAME = 0.03
"""Sizes whose quotient is closer to 1 are one node: between them, noise is more than the slope."""


class Curve:
    """Positive times over one positive size, by straight lines between the logarithms of both.

    The times of a layer are a fixed cost and powers of its size. A straight line in logarithms is
    exact for each of these alone. Between sizes of quotient 2 it is at most 1.5 % above the sum of
    a fixed cost and a multiple of the size, and 6 % with its square; a line without logarithms
    would be 12 % above a square. The curve passes through its nodes, does not overshoot between
    them, and is monotone where they are.

    Args:
        nodes: (size, times) of each node, in any order, with the same number of times. Nodes whose
            sizes differ by less than 3 % are replaced by their geometric mean.
    """

    def __init__(self, nodes: Sequence[tuple[float, Values]]) -> None:
        if not nodes or any(size <= 0 or min(times) <= 0 for size, times in nodes):
            raise ValueError("curve: it needs nodes, all of sizes and times above 0")
        merged = [np.log([(size, *times) for size, times in group]) for group in _close(nodes)]
        table = np.array([group.mean(axis=0) for group in merged])
        self._sizes: NDArray[np.float64] = table[:, 0]
        self._times: NDArray[np.float64] = table[:, 1:]

    @property
    def smallest(self) -> float:
        """Size of the first node."""
        return float(np.exp(self._sizes[0]))

    @property
    def largest(self) -> float:
        """Size of the last node."""
        return float(np.exp(self._sizes[-1]))

    @property
    def sizes(self) -> list[float]:
        """Sizes of the nodes, ascending."""
        return [float(size) for size in np.exp(self._sizes)]

    def __call__(self, size: float) -> NDArray[np.float64]:
        """Times at a size, shape [times]; outside of the nodes the last line is prolonged."""
        place, times = math.log(size), self._times
        if len(times) == 1:
            # Without a slope: proportional above the node, and fixed below it.
            return np.asarray(np.exp(times[0] + max(0.0, place - self._sizes[0])))
        at = int(np.clip(np.searchsorted(self._sizes, place), 1, len(times) - 1))
        first, last = self._sizes[at - 1], self._sizes[at]
        share = (place - first) / (last - first)
        return np.asarray(np.exp(times[at - 1] + share * (times[at] - times[at - 1])))


class Surface:
    """Positive times over two sizes: curves over the first one, joined as a curve over the second.

    Args:
        lines: For each value of the second size the nodes of its curve.
    """

    def __init__(self, lines: Mapping[float, Sequence[tuple[float, Values]]]) -> None:
        self._lines = [(at, Curve(lines[at])) for at in sorted(lines)]
        if not self._lines:
            raise ValueError("surface: it needs a line")

    @property
    def smallest(self) -> float:
        """Smallest second size."""
        return self._lines[0][0]

    @property
    def largest(self) -> float:
        """Largest second size."""
        return self._lines[-1][0]

    @property
    def lines(self) -> list[tuple[float, Curve]]:
        """Curves by second size, ascending."""
        return self._lines

    def __call__(self, size: float, second: float) -> NDArray[np.float64]:
        """Times at two sizes, shape [times]; outside, the last lines are prolonged."""
        lines = self._lines
        above = next((i for i, (at, _) in enumerate(lines) if at >= second), len(lines) - 1)
        chosen = lines[max(0, above - 1) : max(0, above - 1) + 2]
        across = Curve([(at, tuple(curve(size).tolist())) for at, curve in chosen])
        return across(second)


class Multiples:
    """Positive times over a number of equal things and their size.

    They are the time of one thing, a curve over its size, times a factor, a surface over number and
    size. So sizes at which one thing alone was measured refine the times of many.

    Args:
        lines: For each size the nodes over the number.
    """

    def __init__(self, lines: Mapping[float, Sequence[tuple[float, Values]]]) -> None:
        curves = {size: Curve(nodes) for size, nodes in lines.items()}
        self._ones = Curve([(size, tuple(curve(1).tolist())) for size, curve in curves.items()])
        factors = {
            size: [(n, tuple((curve(n) / curve(1)).tolist())) for n in (1.0, *curve.sizes)]
            for size, curve in curves.items()
            if len(curve.sizes) > 1
        }
        self._factors = Surface(factors) if factors else None

    @property
    def ones(self) -> Curve:
        """Times of one thing over its size."""
        return self._ones

    def __call__(self, number: float, size: float) -> NDArray[np.float64]:
        """Times of a number of things of a size, shape [times]."""
        if self._factors is None:
            return number * self._ones(size)
        return self._ones(size) * self._factors(number, size)


def _close(nodes: Sequence[tuple[float, Values]]) -> list[list[tuple[float, Values]]]:
    """Nodes in order, those of nearly the same size together."""
    start = 0.0

    def first_of(node: tuple[float, Values]) -> float:
        nonlocal start
        if node[0] > start * (1 + _SAME):
            start = node[0]
        return start

    return [list(group) for _, group in groupby(sorted(nodes), key=first_of)]
