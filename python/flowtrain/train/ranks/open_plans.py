"""The plans of which an encoder rank that comes and goes may take items."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import count

from flowtrain.steps import StepPlan
from flowtrain.train.control.board import Board, Row
from flowtrain.train.control.store import JobStore
from flowtrain.train.planning.plans import plan_key


class OpenPlans:
    """Plans that the readers have not finished, in the order in which they read them.

    A rank may join at any time: it begins where the readers are.

    Args:
        store: The job's store.
        board: Its board.
        evaluated: Steps of this start of the run that an evaluation follows, in their order.
    """

    def __init__(self, store: JobStore, board: Board, evaluated: Sequence[int]) -> None:
        self._store = store
        self._board = board
        self._evaluated = evaluated
        self._plans: dict[int, StepPlan] = {}
        self._rows: dict[int, Row] = {}
        self._progress = board.progress()

    @property
    def step(self) -> int:
        """The first step that the readers have not finished."""
        return self._progress.steps.start

    @property
    def batch(self) -> int:
        """The first plan of an evaluation that they have not finished."""
        return self._progress.batches.start

    def refresh(self) -> list[StepPlan]:
        """Look again which plans are open, and forget what was seen of their rows.

        Returns:
            Plans that the readers have finished since.
        """
        self._rows.clear()
        self._progress = progress = self._board.progress()
        first = {True: progress.steps.start, False: progress.batches.start}
        done = [s for s, plan in self._plans.items() if s < first[plan.is_step]]
        return [self._plans.pop(step) for step in sorted(done)]

    def seen(self, step: int, row: Row | None) -> None:
        """Keep a row as it was last seen; None if it is done."""
        if row is None:
            self._rows.pop(step, None)
        else:
            self._rows[step] = row

    def row(self, step: int) -> Row | None:
        """A row as it was last seen; None if it is done."""
        if step not in self._rows:
            self.seen(step, self._board.row(step))
        return self._rows.get(step)

    def __iter__(self) -> Iterator[StepPlan]:
        """The plans in their order; ends early where one was finished since `refresh`."""
        progress = self._progress
        batches = iter(progress.batches)
        evaluations = iter(self._evaluated[progress.evaluations :])
        evaluated = next(evaluations, None)
        for step in count(progress.steps.start):
            if step not in progress.steps or (plan := self._plan(step)) is None:
                return
            yield plan
            if step != evaluated:
                continue
            for batch in batches:
                if (plan := self._plan(batch)) is None:
                    return
                if plan.kind == "end":
                    break
                yield plan
            else:
                return  # The next batch is not planned yet.
            evaluated = next(evaluations, None)

    def _plan(self, number: int) -> StepPlan | None:
        if number not in self._plans:
            text = self._store.peek(plan_key(number))
            if text is None:
                return None
            self._plans[number] = StepPlan.from_json(text)
        return self._plans[number]
