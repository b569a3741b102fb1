"""Corrects the costs of documents while a run trains, for as long as that pays.

The planner predicts what a document costs, and balances the ranks by that. Some lengths run slower
than predicted, as kernels are chosen by shape; a rank that has more of them is then late. Times of
microbatches show which shapes these are.

Source: the adaptive correction of DFLOP, arXiv 2603.25120, section 3.4: measure the benefit,
penalize shapes that run slow, stop once the mean benefit is no more than the cost. The paper has no
code for it. How shapes are found, and how the benefit is measured, are FlowTrain's own.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Mapping, Sequence
from statistics import NormalDist, fmean, stdev
from typing import Literal

import numpy

from flowtrain.cost.slow_shapes import FloatArray, MeasuredRow, Rows, rank_rates, slow_shapes

State = Literal["learning", "on", "off"]

# Steps between fits; later fits use more rows.
_FIT_EVERY = 10
# Steps whose mean benefit decides.
_WINDOW = 20
# Steps after which a correction that does not pay is given up.
_PATIENCE = 40
# A benefit must be so many standard errors above the cost before it counts as one.
_SURE = 2.0
_MAX_DOCUMENTS = 1 << 18
# Deviations above so many median absolute deviations have other reasons than the shape.
_CLIP = 8.0


class Correction:
    """Learns which shapes run slow, and whether it pays to plan with that.

    It learns from the last 262,144 documents. Factors are fitted every 10 steps. Their benefit is
    measured on the steps that follow, which have not been used to fit them (`benefit_s`).
    `learning`: no factor is in use yet. `on`: once the mean benefit of these steps, or of the last
    20 of them, is above the cost by two standard errors. `off`, for good: if that does not happen
    within 40 steps, or the mean benefit of the last 20 is no longer above the cost. Equal calls
    give equal factors.

    Args:
        state: State to go on with, for example that of a run which is resumed.
        factors: Factors in this state. The first 40 steps do not forget a shape that they do not
            show to be slow, for want of rows.
    """

    def __init__(
        self, state: State = "learning", factors: Mapping[int, float] | None = None
    ) -> None:
        self._state = state
        self._factors: dict[int, float] = dict(factors or {})
        self._fitted = self._given = self._factors
        self._steps: deque[Rows] = deque()
        self._benefits: deque[float] = deque(maxlen=_WINDOW)
        self._costs: deque[float] = deque(maxlen=_WINDOW)
        self._observed = 0

    @property
    def state(self) -> State:
        return self._state

    @property
    def factors(self) -> Mapping[int, float]:
        """By what the cost of each slow shape is to be multiplied; empty unless `on`."""
        return dict(self._factors)

    def observe(self, measured: Sequence[MeasuredRow], *, cost_s: float) -> bool:
        """Take in the microbatches of one step.

        Args:
            measured: Microbatches of all ranks, without empty ones, with times above 0.
            cost_s: Seconds by which the correction made a step longer.

        Returns:
            Whether `state` or `factors` changed.
        """
        if self._state == "off" or not measured:
            return False
        before = self._state, self._factors
        rows = Rows(measured)
        if self._given or self._observed >= _FIT_EVERY:
            self._benefits.append(benefit_s(rows, self._fitted))
            self._costs.append(cost_s)
        self._steps.append(rows)
        self._observed += 1
        while sum(len(step.cost) for step in self._steps) > _MAX_DOCUMENTS and len(self._steps) > 1:
            self._steps.popleft()
        if self._observed % _FIT_EVERY == 0:
            self._decide()
        return before != (self._state, self._factors)

    def _decide(self) -> None:
        if self._state == "learning" and self._pays(surely=True):
            self._state = "on"
        given_up = self._state == "learning" and self._observed >= _PATIENCE
        full = len(self._benefits) == _WINDOW
        if given_up or (self._state == "on" and full and not self._pays()):
            self._state = "off"
            self._factors = self._fitted = {}
            self._steps.clear()
            return
        found = slow_shapes(Rows.joined(self._steps))
        # Two digits, so that a fit to nearly the same rows changes nothing.
        self._fitted = {shape: round(factor, 2) for shape, factor in found.items()}
        if self._observed < _PATIENCE:
            self._fitted = self._given | self._fitted
        if self._state == "on":
            self._factors = self._fitted

    def _pays(self, *, surely: bool = False) -> bool:
        """Whether the mean benefit is above the mean cost."""
        if len(self._benefits) < 2:
            return False
        margin = _SURE * stdev(self._benefits) / math.sqrt(len(self._benefits)) if surely else 0.0
        return fmean(self._benefits) - margin > fmean(self._costs)


def benefit_s(rows: Rows, factors: Mapping[int, float]) -> float:
    """By how much a step is shorter if its ranks are balanced with factors, in seconds.

    Ranks whose predicted times are equal wait for the rank with the largest error of prediction. If
    the times of microbatches deviate from the prediction independently, with standard deviation v,
    that wait is v x sqrt(microbatches of a rank) x the expected maximum of as many normal
    variables as there are ranks. The benefit is the wait under plain costs less that under
    corrected ones, each with the deviations of this step from the prediction with these costs. A
    single deviation counts at most eight times the median.

    Args:
        rows: Microbatches of one step.
        factors: Factors that were found without this step.
    """
    if not factors:
        return 0.0
    plain, corrected = (_deviations(rows, rows.predicted(each)) for each in ({}, dict(factors)))
    limit = _CLIP * float(numpy.median(numpy.abs(plain)))
    spreads = [float(each.clip(-limit, limit).std()) for each in (plain, corrected)]
    ranks = len(numpy.unique(rows.ranks))
    # Blom (1958).
    maximum = NormalDist().inv_cdf((ranks - 0.375) / (ranks + 0.25))
    return maximum * math.sqrt(len(rows) / ranks) * (spreads[0] - spreads[1])


def _deviations(rows: Rows, cost: FloatArray) -> FloatArray:
    """Seconds of each row beyond what its cost says, at the median rate of its rank."""
    deviations: FloatArray = rows.seconds - rank_rates(rows, cost) * cost
    return deviations
