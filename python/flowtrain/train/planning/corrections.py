"""Corrected costs of the plans of a run: learned while it trains, or taken from a log."""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from pathlib import Path
from queue import Empty, SimpleQueue

from flowtrain.config.flow import FlowConfig
from flowtrain.cost.correction import Correction
from flowtrain.cost.slow_shapes import MeasuredRow, shape_of
from flowtrain.steps import CorrectionEvent, StepPlan
from flowtrain.steps.build import SampleSize
from flowtrain.train.state.corrections import read_corrections

Measured = tuple[StepPlan, Sequence[float]]
"""A plan, and the seconds of its slots, [backbone rank][slot] in one row; 0 without documents."""


def corrections_of(flow: FlowConfig, log: Path, *, first: int) -> PlanCorrections | None:
    """Corrections of a run; None if its costs are not corrected.

    With `flow.corrections` they are those of that log. Otherwise the last event of the run's own
    log goes on to hold in a run that learns, and ends in one that does not.

    Args:
        flow: Configuration of the run.
        log: `plan.log` of the run, cut to `first`.
        first: First step that is planned.
    """
    own = read_corrections(log)
    # The state before an event is that of a run that has just begun.
    logged = own[-1] if own else CorrectionEvent(step=0, state="learning")
    if flow.corrections is not None:
        followed = read_corrections(flow.corrections)
        before = [event for event in followed if event.step < first]
        wanted = before[-1] if before else CorrectionEvent(step=0, state="learning")
        later = [event for event in followed if event.step >= first]
        return PlanCorrections(_changed(logged, wanted, first) + later, now=wanted)
    if flow.correct:
        learner = Correction(state=logged.state, factors=logged.factors)
        return PlanCorrections([], now=logged, learner=learner)
    ended = CorrectionEvent(step=0, state="off")
    events = _changed(logged, ended, first)
    return PlanCorrections(events, now=ended) if events else None


def _changed(logged: CorrectionEvent, wanted: CorrectionEvent, first: int) -> list[CorrectionEvent]:
    """The event that a log lacks if other factors than its last ones are to hold."""
    if logged.factors == wanted.factors:
        return []
    return [CorrectionEvent(step=first, state=wanted.state, factors=wanted.factors)]


class PlanCorrections:
    """Corrects costs of documents, by events that are each valid from a step on.

    The planner's thread calls all methods but `measured`.

    Args:
        events: Events that are known before the run.
        now: The event that is valid until the first of them.
        learner: Makes further events from measured times.
    """

    def __init__(
        self,
        events: Iterable[CorrectionEvent],
        *,
        now: CorrectionEvent,
        learner: Correction | None = None,
    ) -> None:
        self._events = {event.step: event for event in events}
        self._factors = now.factors
        self._learner = learner
        self._measured: SimpleQueue[Measured] = SimpleQueue()
        self._costs: dict[int, dict[int, float]] = {}
        self._cost_s = 0.0

    def corrected(
        self, step: int, samples: Sequence[SampleSize], costs: Sequence[float]
    ) -> list[float]:
        """Backbone costs by which a step is planned; called for each step in turn.

        Times that have been measured until now may change the factors from this step on.

        Args:
            step: The step.
            samples: Sizes of its samples.
            costs: Their costs, shape [num_samples].
        """
        if self._learner is not None:
            self._learn(self._learner, step)
            if self._learner.state != "off":
                indices = [sample.index for sample in samples]
                self._costs[step] = dict(zip(indices, costs, strict=True))
        if (event := self._events.get(step)) is not None:
            self._factors = event.factors
        factors = [self._factors.get(shape_of(sample.num_tokens), 1.0) for sample in samples]
        return [cost * factor for cost, factor in zip(costs, factors, strict=True)]

    def event(self, step: int) -> CorrectionEvent | None:
        """The event that is valid from this step on; called once, before its plan is logged."""
        return self._events.pop(step, None)

    def measured(self, plan: StepPlan, seconds: Sequence[float]) -> None:
        """Take in the times of a step, for later plans; called by any thread.

        Args:
            plan: The step.
            seconds: Time of each slot, [backbone rank][slot] in one row; 0 without documents.
        """
        if self._learner is not None:
            self._measured.put((plan, seconds))

    def _learn(self, learner: Correction, step: int) -> None:
        changed = False
        while True:
            try:
                plan, seconds = self._measured.get_nowait()
            except Empty:
                break
            costs = self._costs.pop(plan.step, None)
            if costs is None:
                continue
            before = time.thread_time()
            changed |= learner.observe(_rows(plan, seconds, costs), cost_s=self._cost_s)
            # The fit of a step counts as the cost of the next one.
            self._cost_s = time.thread_time() - before
        if learner.state == "off":
            self._costs.clear()
        if changed:
            self._events[step] = CorrectionEvent(
                step=step, state=learner.state, factors=learner.factors
            )


def _rows(plan: StepPlan, seconds: Sequence[float], costs: dict[int, float]) -> list[MeasuredRow]:
    """Measured slots of a step."""
    return [
        MeasuredRow(
            rank=rank,
            shapes=tuple(shape_of(document.num_tokens) for document in documents),
            cost=tuple(costs[document.sample] for document in documents),
            seconds=took,
        )
        for rank in range(len(plan.documents))
        for slot, documents in plan.documents_of(rank)
        if (took := seconds[rank * plan.slots + slot]) > 0
    ]
