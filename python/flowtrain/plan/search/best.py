"""The best candidates, of which only those are priced whose lower bound may be among them."""

from __future__ import annotations

import itertools
import math
from collections.abc import Hashable, Iterable
from typing import Generic, Protocol, TypeVar


class Found(Protocol):
    """A plan with an exact price."""

    @property
    def step_s(self) -> float: ...

    @property
    def kind(self) -> Hashable:
        """What plans have in common of which only the best is kept."""
        ...


T = TypeVar("T", bound=Found)
T_co = TypeVar("T_co", bound=Found, covariant=True)


class Candidate(Protocol[T_co]):
    """A plan with a lower bound of its step."""

    @property
    def bound_s(self) -> float: ...

    @property
    def kind(self) -> Hashable: ...

    def priced(self, cutoff_s: float = math.inf) -> T_co | None:
        """The plan with its exact price, or None if it does not fit.

        Args:
            cutoff_s: Of several choices, those that take as long at least need no price.
        """
        ...


class Best(Generic[T]):
    """The plans with the shortest steps among those considered, one of each kind.

    Args:
        keep: Number of plans to keep.

    Attributes:
        cutoff_s: A step must be below this to be among the best. It never rises.
    """

    def __init__(self, keep: int) -> None:
        self._keep = keep
        self._found: dict[Hashable, tuple[float, int, T]] = {}
        self._order = itertools.count()
        self.cutoff_s = math.inf

    def cutoff_of(self, kind: Hashable) -> float:
        """A step of a kind must be below this to be among the best."""
        known = self._found.get(kind)
        return self.cutoff_s if known is None else known[0]

    @property
    def plans(self) -> list[T]:
        """The plans, the best first; of equal ones the first that was considered."""
        return [plan for _, _, plan in sorted(self._found.values(), key=lambda entry: entry[:2])]

    def consider(self, candidates: Iterable[Candidate[T]]) -> None:
        """Keep those of the candidates that are among the best.

        They are priced in the order of their bounds, until the next bound reaches the cutoff. So
        the result is that of pricing all of them.
        """
        for candidate in sorted(candidates, key=lambda candidate: candidate.bound_s):
            if candidate.bound_s >= self.cutoff_s:
                return
            cutoff_s = self.cutoff_of(candidate.kind)
            if candidate.bound_s >= cutoff_s:
                continue
            if (plan := candidate.priced(cutoff_s)) is not None:
                self.add(plan)

    def add(self, plan: T) -> None:
        """Keep a plan if it is among the best."""
        if plan.step_s >= self.cutoff_of(plan.kind):
            return
        self._found[plan.kind] = (plan.step_s, next(self._order), plan)
        if len(self._found) > self._keep:
            worst = max(self._found, key=lambda kind: self._found[kind][:2])
            del self._found[worst]
        if len(self._found) == self._keep:
            self.cutoff_s = max(step_s for step_s, _, _ in self._found.values())
