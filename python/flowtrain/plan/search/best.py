"""The best candidates, of which only those are priced whose lower bound may be among them."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Hashable, Iterable
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
        most: Number of plans to keep at most, if more than `keep` are below `limit_of`.
        limit_of: Seconds below which others are kept, given one of the best plans; the least of
            them counts. None keeps no more than `keep`.

    Attributes:
        cutoff_s: A step must be below this to be among the best. It never rises.
    """

    def __init__(
        self, keep: int, *, most: int = 0, limit_of: Callable[[T], float] | None = None
    ) -> None:
        self._keep, self._most, self._limit_of = keep, max(keep, most), limit_of
        self._found: dict[Hashable, tuple[float, int, T]] = {}
        self._order = itertools.count()
        self._limit_s = math.inf
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
                break
            cutoff_s = self.cutoff_of(candidate.kind)
            if candidate.bound_s >= cutoff_s:
                continue
            if (plan := candidate.priced(cutoff_s)) is not None:
                self.add(plan)
        self._tighten()

    def add(self, plan: T) -> None:
        """Keep a plan if it is among the best."""
        if plan.step_s >= self.cutoff_of(plan.kind):
            return
        is_best = all(plan.step_s < step_s for step_s, _, _ in self._found.values())
        self._found[plan.kind] = (plan.step_s, next(self._order), plan)
        if is_best and self._limit_of is not None:
            self._limit_s = min(self._limit_s, self._limit_of(plan))
        self._cut()

    def _tighten(self) -> None:
        """Lower the limit to that of all of the first plans."""
        if self._limit_of is not None and self._found:
            limits = map(self._limit_of, self.plans[: self._keep])
            self._limit_s = min(self._limit_s, *limits)
            self._cut()

    def _cut(self) -> None:
        """Drop what is not among the best any more, and lower the cutoff."""
        if len(self._found) < self._keep:
            return
        ranked = sorted(self._found, key=lambda kind: self._found[kind][:2])
        count = self._keep
        if self._limit_of is not None:
            below = (self._found[kind][0] < self._limit_s for kind in ranked)
            count = min(self._most, max(self._keep, sum(below)))
        for kind in ranked[count:]:
            del self._found[kind]
        last_s = self._found[ranked[count - 1]][0]
        open_ended = self._limit_of is not None and count < self._most
        self.cutoff_s = max(last_s, self._limit_s) if open_ended else last_s
