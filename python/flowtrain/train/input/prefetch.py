"""Contents of planned samples, read while the step before is computed."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from flowtrain.plan import StepPlan
from flowtrain.train.input.reads import Read, Reads
from flowtrain.train.planning.planner import Plans

Request = tuple[str, tuple[Any, ...]]
"""Method of the reader, and its arguments, the sample first."""


class Prefetch:
    """Submits what a rank reads of each plan, one step ahead where the plan is known.

    Args:
        plans: The plans.
        reads: Requests of this rank.
        wants: Requests of this rank for a plan: method of the reader, and its arguments.
    """

    def __init__(
        self,
        plans: Plans,
        reads: Reads,
        wants: Callable[[StepPlan], Iterable[Request]],
    ) -> None:
        self._plans = plans
        self._reads = reads
        self._wants = wants
        self._pending: dict[int, dict[Request, Read]] = {}

    def step(self, plan: StepPlan) -> None:
        """Called once a step, before its contents are asked for."""
        self._submit(plan)
        coming = self._plans.peek(plan.step + 1)
        if coming is not None:
            self._submit(coming)

    def get(self, step: int, request: Request) -> Any:
        """One content of a planned step.

        Raises:
            DataError: It cannot be read; the message is that of `Reads.result`.
        """
        return self._reads.result(self._pending[step][request])

    def forget(self, step: int) -> None:
        self._pending.pop(step, None)

    def _submit(self, plan: StepPlan) -> None:
        if plan.kind == "train" and plan.step not in self._pending:
            self._pending[plan.step] = {
                (method, arguments): self._reads.submit(method, *arguments)
                for method, arguments in dict.fromkeys(self._wants(plan))
            }
