"""The planner: a thread of the first backbone rank that publishes the plan of every step."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import islice
from pathlib import Path

from flowtrain.data.text import CompactText
from flowtrain.error_texts import reason_of
from flowtrain.steps import SpaceNeed, StepPlan
from flowtrain.train.control.activity import Activity
from flowtrain.train.control.job import STOP
from flowtrain.train.control.store import JobStore
from flowtrain.train.planning.corrections import PlanCorrections
from flowtrain.train.planning.plans import FIRST_NEED, plan_key
from flowtrain.train.planning.texts import put_texts
from flowtrain.train.state.logs import Log

PlannedStep = tuple[StepPlan, Mapping[int, CompactText]]
"""A plan, and the text of each of its samples."""


class Planner(threading.Thread):
    """Publishes plans and texts in the job's store, a few steps ahead of the current step.

    Plans of the training are appended to `plan.log`, too, and the first of them determine with how
    many slabs the ranks start.

    If it fails, it publishes the error in place of the next plan, after all plans it has made. If
    the launcher asks for it, the end takes the place of the next plan.

    Args:
        source: The steps, in order.
        store: Store with a connection that only this thread uses.
        log: File to which each plan is appended; None for plans of evaluations.
        need: Minimum slabs of each segment for a plan; raises if the pool is too small.
        made: Called with each plan and its JSON text when the plan is published.
        activity: Told while this thread plans.
        ahead: Maximum number of steps between the current step and the newest plan, at least 1.
        first: First step.
        corrections: Corrections of the plans; None if their costs are not corrected.
        opened: Called with each plan before it is published.
    """

    def __init__(
        self,
        source: Iterable[PlannedStep],
        *,
        store: JobStore,
        log: Path | None,
        need: Callable[[StepPlan], SpaceNeed],
        made: Callable[[StepPlan, str], None],
        activity: Activity,
        ahead: int,
        first: int,
        corrections: PlanCorrections | None = None,
        opened: Callable[[StepPlan], None] | None = None,
    ) -> None:
        super().__init__(name="flowtrain-planner", daemon=True)
        self._source = source
        self._store = store
        self._log = None if log is None else Log(log)
        self._need = need
        self._made = made
        self._activity = activity
        self._window = threading.Semaphore(ahead)
        self._ahead = ahead
        self._next = first
        self._corrections = corrections
        self._opened = opened
        self._is_stopped = False

    def step_started(self) -> None:
        """Allow one more step to be planned.

        Called while the rank computes, which leaves the interpreter to this thread.
        """
        self._window.release()

    def stop(self) -> None:
        """Let the thread end soon; other ranks are not told of any end of the plans."""
        self._is_stopped = True
        self._window.release()

    def measured(self, plan: StepPlan, seconds: Sequence[float]) -> None:
        """Take in the times of the slots of a step, as `PlanCorrections.measured`."""
        if self._corrections is not None:
            self._corrections.measured(plan, seconds)

    def run(self) -> None:
        try:
            self._run()
        except Exception as error:
            if self._is_stopped:
                return  # What it used is being closed.
            self._end(reason_of(error))

    def _run(self) -> None:
        plans = self._plans()
        window: list[PlannedStep] = []
        need = SpaceNeed(activation=0, gradient=0)
        try:
            for plan, texts in islice(plans, self._ahead + 1):
                need = need.join(self._need(plan))
                window.append((plan, texts))
        finally:
            # Ranks size their segments for the first window; after an error, for its planned part.
            if self._log is not None:
                self._store.put(FIRST_NEED, [need.activation, need.gradient])
            stopped = self._publish(window)
        if stopped or self._publish(plans):
            if not self._is_stopped:
                self._end(stopped=True)
            return
        self._window.acquire()
        if not self._is_stopped:
            self._end()

    def _plans(self) -> Iterator[PlannedStep]:
        plans = iter(self._source)
        while True:
            start, cpu = time.perf_counter_ns(), time.thread_time_ns()
            with self._activity.working():
                planned = next(plans, None)
            if planned is None:
                return
            self._activity.events.add(
                "planner",
                "planned",
                start,
                time.perf_counter_ns(),
                cpu_ns=time.thread_time_ns() - cpu,
                step=planned[0].step,
            )
            # Refuse a plan that does not fit the pool before it is published.
            self._need(planned[0])
            yield planned

    def _publish(self, plans: Iterable[PlannedStep]) -> bool:
        """Publish plans; return whether the run is to end before the last of them."""
        for plan, texts in plans:
            self._window.acquire()
            if self._is_stopped or self._store.has(STOP):
                return True
            put_texts(self._store, plan, texts)
            text = plan.to_json()
            if self._log is not None:
                if self._corrections is not None and (event := self._corrections.event(plan.step)):
                    self._log.append(event.to_json())
                self._log.append(text)
            if self._opened is not None:
                self._opened(plan)
            self._store.put_text(plan_key(plan.step), text)
            self._made(plan, text)
            self._next = plan.step + 1
        return False

    def _end(self, error: str | None = None, *, stopped: bool = False) -> None:
        end = StepPlan(step=self._next, kind="end", error=error, stopped=stopped)
        self._store.put_text(plan_key(end.step), end.to_json())
