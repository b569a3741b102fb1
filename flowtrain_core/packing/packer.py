"""A stream of steps over samples that keep arriving."""

from __future__ import annotations

import math
import operator
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any

import numpy

from flowtrain_core._C import packing as kernels
from flowtrain_core.packing.arguments import integer
from flowtrain_core.packing.assignment import Assignment
from flowtrain_core.packing.interface import schedule


@dataclass(frozen=True, kw_only=True, slots=True)
class Waiting:
    """A sample that no step has taken yet."""

    key: int
    tokens: int
    cost: float
    encoder_cost: float = 0.0
    age: int = 0


class Packer:
    """Forms steps from a stream of samples; samples that are not placed wait.

    Every sample is in exactly one step, at most `max_age` steps after the first that could have
    had it, unless other samples that are due fill the bins. With max_age=0 each call of `step`
    takes all that was added.

    State: only the waiting samples; `state_dict` and `load_state_dict` continue exactly.
    """

    def __init__(self, *, max_age: int = 0, **options: Any) -> None:
        """Args: those of `schedule`, except for the samples and their ages.

        Raises:
            TypeError, ValueError: As `schedule`.
        """
        self._max_age = integer(max_age, "max_age", minimum=0, bits=62)
        self._options = options
        schedule([], [], max_age=self._max_age, **options)
        self._waiting: list[Waiting] = []
        self._waiting_tokens = 0

    @property
    def waiting_tokens(self) -> int:
        """Tokens of all samples that wait."""
        return self._waiting_tokens

    def __len__(self) -> int:
        """Samples that wait."""
        return len(self._waiting)

    def add(self, key: int, tokens: int, cost: float, encoder_cost: float = 0.0) -> None:
        """Add a waiting sample; `step` returns its `key`.

        Raises:
            ValueError: A number is of no use, and the sample is not added.
        """
        name, most = f"sample {key}: tokens", self._options["max_tokens"]
        tokens = integer(tokens, name, minimum=0, bits=62)
        if tokens > most and self._options.get("oversize") != "drop":
            raise ValueError(
                f"{name}={tokens}: more than max_tokens={most}; raise it, or pass oversize='drop'"
            )
        for kind, value in (("cost", cost), ("encoder_cost", encoder_cost)):
            if not 0 <= value < math.inf:
                raise ValueError(f"sample {key}: {kind}={value}: must be 0 or more, and finite")
        self._waiting.append(
            Waiting(
                key=operator.index(key),
                tokens=tokens,
                cost=float(cost),
                encoder_cost=float(encoder_cost),
            )
        )
        self._waiting_tokens += tokens

    def step(self) -> tuple[list[int], Assignment]:
        """Form a step from the waiting samples.

        Returns:
            The keys of all samples that were considered, in the order of the assignment's arrays;
            those whose slot is -1 are carried, except for those left out.
        """
        window = self._waiting
        encoder = [sample.encoder_cost for sample in window]
        plan = schedule(
            numpy.array([sample.tokens for sample in window]),
            numpy.array([sample.cost for sample in window], numpy.float64),
            numpy.array(encoder, numpy.float64) if any(encoder) else None,
            age=numpy.array([sample.age for sample in window], numpy.int64),
            max_age=self._max_age,
            **self._options,
        )
        self._wait(self._aged([window[i] for i in plan.carried]))
        return [sample.key for sample in window], plan

    def state_dict(self) -> dict[str, Any]:
        """The waiting samples, as plain numbers."""
        return {
            "waiting": [[s.key, s.tokens, s.cost, s.encoder_cost, s.age] for s in self._waiting]
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore the result of `state_dict`."""
        rows: Iterable[list[Any]] = state["waiting"]
        self._wait(
            [
                Waiting(key=key, tokens=tokens, cost=cost, encoder_cost=encoder, age=age)
                for key, tokens, cost, encoder, age in rows
            ]
        )

    def _aged(self, carried: list[Waiting]) -> list[Waiting]:
        """The carried samples, one step older, except for due ones that might not fit.

        Due samples are packed by best fit, longest first, which a closed step tries too. Those that
        find no bin stay as old as they are.
        """
        aged = [replace(sample, age=sample.age + 1) for sample in carried]
        due = [place for place, sample in enumerate(aged) if sample.age >= self._max_age]
        due.sort(key=lambda place: -aged[place].tokens)
        tokens = numpy.array([aged[place].tokens for place in due], numpy.int64)
        found = kernels.best_fit(tokens, self._options["max_tokens"]).tolist()
        for place, bin_ in zip(due, found, strict=True):
            if bin_ >= self._options["ranks"] * self._options["microbatches"]:
                aged[place] = carried[place]
        return aged

    def _wait(self, samples: list[Waiting]) -> None:
        self._waiting = samples
        self._waiting_tokens = sum(sample.tokens for sample in samples)
