"""Prefetch: reads what the next step needs while the current one is computed."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from flowtrain.data.calls import Call
from flowtrain.events import EventLog
from flowtrain.steps import StepPlan
from flowtrain.train.input.reads import SampleReads

Request = tuple[str, tuple[Any, ...]]
"""Method of the reader and its arguments, the sample first."""


class Prefetch:
    """Submits the reads of each plan, one step ahead if the next plan is known.

    Args:
        reads: Reads of this rank.
        peek: Returns the plan of a step if it is published already.
        requests: Returns what this rank reads for a plan.
        events: Told of waits for a read.
    """

    def __init__(
        self,
        reads: SampleReads,
        peek: Callable[[int], StepPlan | None],
        requests: Callable[[StepPlan], Iterable[Request]],
        events: EventLog,
    ) -> None:
        self._reads = reads
        self._peek = peek
        self._requests = requests
        self._events = events
        self._pending: dict[int, dict[Request, Call]] = {}

    def start(self, plan: StepPlan) -> None:
        """Submit the reads of a plan and of the next one; called before `get`."""
        self._submit(plan)
        following = self._peek(plan.step + 1)
        if following is not None:
            self._submit(following)

    def add(self, step: int, requests: Iterable[Request]) -> None:
        """Submit some reads of a step; called before `get`, too, in place of `start`."""
        pending = self._pending.setdefault(step, {})
        wanted = [request for request in dict.fromkeys(requests) if request not in pending]
        pending.update(zip(wanted, self._reads.submit_all(wanted), strict=True))

    def get(self, step: int, request: Request) -> Any:
        """Wait for one result of a step.

        Raises:
            DataError: It cannot be read; see `SampleReads.result`.
        """
        call = self._pending[step][request]
        if call.done():
            return self._reads.result(call)
        with self._events.span("pixels"):
            return self._reads.result(call)

    def forget(self, step: int) -> None:
        """Drop the results of a step."""
        self._pending.pop(step, None)

    def _submit(self, plan: StepPlan) -> None:
        if plan.kind != "end" and plan.step not in self._pending:
            self.add(plan.step, self._requests(plan))
