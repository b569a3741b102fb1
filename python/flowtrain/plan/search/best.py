"""The best candidates, of which only those are priced whose lower bound may be among them."""

from __future__ import annotations

import heapq
import itertools
import math
from collections.abc import Iterable
from typing import Generic, Protocol, TypeVar


class Found(Protocol):
    """A plan with an exact price."""

    @property
    def step_s(self) -> float: ...


T = TypeVar("T", bound=Found)
T_co = TypeVar("T_co", bound=Found, covariant=True)


class Candidate(Protocol[T_co]):
    """A plan with a lower bound of its step."""

    @property
    def bound_s(self) -> float: ...

    def priced(self) -> T_co | None:
        """The plan with its exact price, or None if it does not fit."""
        ...


class Best(Generic[T]):
    """The plans with the shortest steps among those considered.

    Args:
        keep: Number of plans to keep.
    """

    def __init__(self, keep: int) -> None:
        self._keep = keep
        self._heap: list[tuple[float, int, T]] = []  # The worst first.
        self._order = itertools.count()

    @property
    def cutoff_s(self) -> float:
        """A step must be below this to be among the best."""
        return -self._heap[0][0] if len(self._heap) == self._keep else math.inf

    @property
    def plans(self) -> list[T]:
        """The plans, the best first; of equal ones the first that was considered."""
        return [plan for _, _, plan in sorted(self._heap, key=lambda entry: (-entry[0], -entry[1]))]

    def consider(self, candidates: Iterable[Candidate[T]]) -> None:
        """Keep those of the candidates that are among the best.

        They are priced in the order of their bounds, until the next bound reaches the cutoff. So
        the result is that of pricing all of them.
        """
        for candidate in sorted(candidates, key=lambda candidate: candidate.bound_s):
            if candidate.bound_s >= self.cutoff_s:
                return
            if (plan := candidate.priced()) is not None:
                self.add(plan)

    def add(self, plan: T) -> None:
        """Keep a plan if it is among the best."""
        heapq.heappush(self._heap, (-plan.step_s, -next(self._order), plan))
        if len(self._heap) > self._keep:
            heapq.heappop(self._heap)
