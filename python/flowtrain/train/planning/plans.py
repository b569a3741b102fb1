"""Plans as the ranks read them."""

from __future__ import annotations

import zlib
from collections.abc import Callable

from flowtrain.steps import SpaceNeed, StepPlan
from flowtrain.train.control.store import JobStore
from flowtrain_core import FlowTrainError

FIRST_NEED = "first_need"
"""Key of the slabs that the first plans need."""


class PlanError(FlowTrainError, RuntimeError):
    """The planner could not make a plan; the message is its error."""


def plan_key(step: int) -> str:
    """Key of the plan of a step."""
    return f"plan/{step}"


class PublishedPlans:
    """Reads plans from the job's store; on the rank that makes them, takes them as they are made.

    Args:
        store: The job's store.
        processes: Number of processes that take each plan, over both worlds.
        closed: Called with each plan that the last of them has executed, on that one.
    """

    def __init__(
        self,
        store: JobStore,
        *,
        processes: int,
        closed: Callable[[StepPlan], None] | None = None,
    ) -> None:
        self._store = store
        self._processes = processes
        self._closed = closed
        self._made: dict[int, tuple[StepPlan, bytes]] = {}
        self._known: dict[int, StepPlan] = {}
        self._checksums: dict[int, int] = {}
        self._error: str | None = None
        self._last_done: int | None = None

    def first_need(self) -> SpaceNeed:
        """Wait for the first plans and return the slabs that they need."""
        activation, gradient = self._store.get(FIRST_NEED, writer="the planner")
        return SpaceNeed(activation=activation, gradient=gradient)

    def made(self, plan: StepPlan, text: str) -> None:
        """Take a plan that this process has published, and its JSON text."""
        self._made[plan.step] = plan, text.encode()

    def get(self, step: int) -> StepPlan:
        """Wait for the plan of a step; of kind "end", with an error, if the planner failed.

        The error is raised later, by `check`: a rank that reads ahead must not end steps that
        other ranks still train.
        """
        if step not in self._known:
            plan, text = self._made.pop(step) if step in self._made else self._read(step)
            self._known[step] = plan
            # Plans of an evaluation may be read after a failed plan of the training.
            self._error = self._error or plan.error
            self._checksums[step] = zlib.crc32(text)
        return self._known[step]

    def checksum(self, step: int) -> int:
        """CRC-32 of the plan of a step, as it was published."""
        return self._checksums[step]

    def check(self) -> None:
        """Raise the planner's error, if any; called when every rank has updated after all steps.

        Raises:
            PlanError: The planner failed.
        """
        if self._error is not None:
            raise PlanError(self._error)

    def peek(self, step: int) -> StepPlan | None:
        """Plan of a step if it is published already."""
        if step in self._known or step in self._made or self._store.has(plan_key(step)):
            return self.get(step)
        return None

    def _read(self, step: int) -> tuple[StepPlan, bytes]:
        text = self._store.get_text(plan_key(step), writer="the planner")
        return StepPlan.from_json(text), text

    def forget(self, step: int) -> None:
        """Release a plan that this rank has executed."""
        plan = self._known.pop(step)
        del self._checksums[step]
        self._made.pop(step, None)
        is_last = self._store.release(plan_key(step), [plan_key(step)], processes=self._processes)
        if is_last and self._closed is not None:
            self._closed(plan)
        self._last_done = step

    def wait_for_others(self) -> None:
        """Wait until every rank has executed and saved the steps that this rank has executed."""
        if self._last_done is not None:
            self._store.wait_deleted(plan_key(self._last_done), readers="every rank")
