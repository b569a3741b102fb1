"""Which steps are of interest, given the best plans so far."""

from __future__ import annotations

from collections.abc import Callable, Collection, Hashable
from typing import Any

import numpy

from flowtrain.plan.arrays import FloatArray, IntArray
from flowtrain.plan.prices.costs import Shape
from flowtrain.plan.search.best import Best


class Cutoffs:
    """Steps that are of no interest any more.

    Args:
        best: The best plans so far.
        kind: Kind of the plan that has a mesh and its microbatches.
        only: Kinds of plans that are of interest; None for all.
    """

    def __init__(
        self,
        best: Best[Any],
        kind: Callable[[Shape, int], Hashable],
        only: Collection[Hashable] | None = None,
    ) -> None:
        self._best, self._kind, self._only = best, kind, only

    @property
    def any_s(self) -> float:
        """The highest of all kinds."""
        return self._best.cutoff_s

    def below(self, steps_s: FloatArray, shape: Shape, microbatches: FloatArray) -> IntArray:
        """Numbers of the steps that are of interest, ascending.

        Few are below the cutoff of all kinds, which none of a kind is above.

        Args:
            steps_s: Lower bounds, shape [num_rows].
            shape: The mesh of all.
            microbatches: Microbatches of each, of the same shape.
        """
        found = []
        for number in numpy.flatnonzero(steps_s < self.any_s).tolist():
            kind = self._kind(shape, int(microbatches[number]))
            if self._only is not None and kind not in self._only:
                continue
            if steps_s[number] < self._best.cutoff_of(kind):
                found.append(number)
        return numpy.array(found, numpy.int64)
