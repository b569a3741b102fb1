"""Source of plans: draws the samples of each step, reads their texts and builds its plan."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator

from flowtrain.data.calls import Call
from flowtrain.data.order import DrawOrder
from flowtrain.data.sample_meta import SampleMeta
from flowtrain.data.text import CompactText
from flowtrain.steps import StepPlan
from flowtrain.train.input.reads import SampleReads
from flowtrain.train.planning.builder import PlanBuilder


class PlanSource:
    """Iterates over the plans of all steps, each with the texts of its samples.

    They are the same for the same samples, order and builder.

    Args:
        builder: Makes the plan of the samples of a step.
        reads: Reads of this rank; samples are read one step ahead.
        order: Order of the samples.
        batch: Samples of a step.
        steps: Number of steps.
        none_fits: The error that says that each sample of the data set is dropped.
        step: First step to plan.
        cursor: Number of samples that earlier steps have drawn, including dropped samples.
    """

    def __init__(
        self,
        builder: PlanBuilder,
        *,
        reads: SampleReads,
        order: DrawOrder,
        batch: int,
        steps: int,
        none_fits: Callable[[], Exception],
        step: int = 0,
        cursor: int = 0,
    ) -> None:
        self._builder = builder
        self._reads = reads
        self._order = order
        self._batch = batch
        self._steps = steps
        self._none_fits = none_fits
        self._step = step
        self._cursor = cursor
        self._reading: deque[Call] = deque()

    def __iter__(self) -> Iterator[tuple[StepPlan, dict[int, CompactText]]]:
        while self._step < self._steps:
            samples, texts, dropped = self._draw()
            plan = self._builder.build(self._step, samples, cursor=self._cursor, dropped=dropped)
            yield plan, texts
            self._step += 1

    def _draw(self) -> tuple[list[SampleMeta], dict[int, CompactText], int]:
        """Draw the samples of the next step.

        Returns:
            Their sizes, the text of each sample, and how many samples were dropped.

        Raises:
            DataError: A sample cannot be used, or every sample of the data set is dropped.
        """
        batch = self._batch
        # Later steps draw at least so many samples.
        later = batch * (self._steps - self._step - 1)
        # The samples of the next step are read while this step is planned.
        ahead = min(batch, later)
        samples: list[SampleMeta] = []
        texts: dict[int, CompactText] = {}
        dropped = dropped_in_a_row = 0
        while len(samples) < batch:
            missing = batch - len(samples)
            self._order.expect(self._cursor + missing + later)
            while len(self._reading) < missing + ahead and (drawn := self._drawn(missing, ahead)):
                calls = [("meta_and_text", (sample,)) for sample in drawn]
                self._reading.extend(self._reads.submit_all(calls))
            meta, text = self._reads.result(self._reading.popleft())
            self._cursor += 1
            if meta.fit != "dropped":
                samples.append(meta)
                texts[meta.index] = text
                dropped_in_a_row = 0
                continue
            dropped += 1
            dropped_in_a_row += 1
            if dropped_in_a_row >= self._order.draws_of_all:
                raise self._none_fits()
        return samples, texts, dropped

    def _drawn(self, missing: int, ahead: int) -> list[int]:
        """Samples to read next.

        Waits only for samples of this step, and for none if others can be read meanwhile.

        Args:
            missing: Samples that this step still needs.
            ahead: Samples to read beyond these.
        """
        drawn: list[int] = []
        while (reading := len(self._reading) + len(drawn)) < missing + ahead:
            cursor = self._cursor + reading
            if (drawn or reading >= missing) and not self._order.is_ready(cursor):
                break
            drawn.append(self._order.index(cursor))
        return drawn
