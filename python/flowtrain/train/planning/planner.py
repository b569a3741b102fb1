"""The planner: a thread of backbone rank 0 that fixes what every step is."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from itertools import islice
from pathlib import Path
from typing import Any

from flowtrain.config.schema import RunConfig
from flowtrain.cost.flops import sample_flops, train_flops
from flowtrain.data.errors import no_sample_fits
from flowtrain.data.order import SampleOrder
from flowtrain.data.samples import SampleMeta
from flowtrain.plan import Layout, SpaceNeed, StepPlan, build_step
from flowtrain.train.control.heartbeat import Activity
from flowtrain.train.control.store import Board
from flowtrain.train.input.reads import Read, Reads
from flowtrain.train.ranks.metrics import append


class PlanError(RuntimeError):
    """The planner could not make a plan; the message is its own error."""


class PlanSource:
    """Plans of a run in order, from any step on: the same for the same configuration.

    Args:
        config: The run.
        reads: Requests of this rank; sizes are read ahead of the plan that needs them.
        num_samples: Lines of the data file.
        model_config: Hugging Face configuration, for costs.
        step: First step to plan.
        cursor: Samples that the steps before it have drawn, dropped ones too.
    """

    def __init__(
        self,
        config: RunConfig,
        *,
        reads: Reads,
        num_samples: int,
        model_config: Any,
        step: int = 0,
        cursor: int = 0,
    ) -> None:
        self._config = config
        self._reads = reads
        self._model_config = model_config
        self._order = SampleOrder(num_samples, config.train.seed, config.data.shuffle)
        self._layout = Layout(
            encoders=config.flow.encoders,
            backbones=config.flow.backbones,
            microbatch_tokens=config.train.microbatch_tokens,
            item_tokens=config.flow.item_tokens,
        )
        self._step = step
        self._cursor = cursor
        self._num_samples = num_samples
        self._coming: deque[Read] = deque()

    def __iter__(self) -> Iterator[StepPlan]:
        while self._step < self._config.train.steps:
            yield self._plan(*self._draw())
            self._step += 1

    def _draw(self) -> tuple[list[SampleMeta], int]:
        """Samples of the next step, and how many more were drawn and dropped.

        Raises:
            DataError: A sample cannot be used, or every sample of the file is dropped.
        """
        batch = self._config.train.global_batch
        # One step more than needed is being read while this one is laid out.
        coming = batch if self._step + 1 < self._config.train.steps else 0
        samples: list[SampleMeta] = []
        dropped = in_a_row = 0
        while len(samples) < batch:
            while len(self._coming) < batch - len(samples) + coming:
                line = self._order.index(self._cursor + len(self._coming))
                self._coming.append(self._reads.submit("meta", line))
            sample = self._reads.result(self._coming.popleft())
            self._cursor += 1
            if sample.fit != "dropped":
                samples.append(sample)
                in_a_row = 0
                continue
            dropped += 1
            in_a_row += 1
            # Whatever the order, an epoch lies within so many draws.
            if in_a_row == 2 * self._num_samples:
                raise no_sample_fits(self._config, self._num_samples)
        return samples, dropped

    def _plan(self, samples: list[SampleMeta], dropped: int) -> StepPlan:
        flops = [
            sample_flops(self._model_config, s.num_tokens, s.grids, num_targets=s.num_targets)
            for s in samples
        ]
        frozen = self._config.flow.mode == "frozen"
        trains = {
            "encoder": not frozen,
            "backbone": "backbone" not in self._config.model.freeze,
        }
        return build_step(
            self._step,
            samples,
            [f.backbone for f in flops],
            self._layout,
            cursor=self._cursor,
            dropped=dropped,
            truncated=sum(s.fit == "truncated" for s in samples),
            flops=sum(train_flops(f, **trains) for f in flops),
        )


class Planner(threading.Thread):
    """Writes plans to the board and to `plan.log`, a few steps ahead of the one that closes.

    Where it fails, the error stands in the place of a plan, behind all plans that were made.

    Args:
        source: The plans.
        board: A board of this thread's own.
        log: File that each plan is appended to.
        need: Minimum slabs of each segment for a plan; raises where the pool is too small.
        activity: Told when this thread plans.
        ahead: Steps planned ahead of the one that closes.
        first: First step.
    """

    def __init__(
        self,
        source: PlanSource,
        *,
        board: Board,
        log: Path,
        need: Callable[[StepPlan], SpaceNeed],
        activity: Activity,
        ahead: int,
        first: int,
    ) -> None:
        super().__init__(name="flowtrain-planner", daemon=True)
        self._source = source
        self._board = board
        self._log = log
        self._need = need
        self._activity = activity
        self._window = threading.Semaphore(ahead + 1)
        self._ahead = ahead
        self._next = first

    def closed(self) -> None:
        """Let one more step be planned."""
        self._window.release()

    def run(self) -> None:
        try:
            self._run()
        except Exception as error:
            self._board.put(f"plan/{self._next}", {"error": f"{type(error).__name__}: {error}"})

    def _run(self) -> None:
        plans = self._made()
        window: list[StepPlan] = []
        need = SpaceNeed(activation=0, gradient=0)
        try:
            for plan in islice(plans, self._ahead + 1):
                need = need.join(self._need(plan))
                window.append(plan)
        finally:
            # Ranks size their segments by the first window, or by what of it could be planned.
            self._board.put("layout", [need.activation, need.gradient])
            self._publish(window)
        self._publish(plans)
        self._window.acquire()
        end = StepPlan(step=self._next, kind="end")
        self._board.put(f"plan/{end.step}", {"plan": end.to_json()})

    def _made(self) -> Iterator[StepPlan]:
        plans = iter(self._source)
        while True:
            with self._activity.working():
                plan = next(plans, None)
            if plan is None:
                return
            self._need(plan)  # A plan that the pool cannot hold is refused before it begins.
            yield plan

    def _publish(self, plans: Iterable[StepPlan]) -> None:
        for plan in plans:
            self._window.acquire()
            append(self._log, plan.to_json())
            self._board.put(f"plan/{plan.step}", {"plan": plan.to_json()})
            self._next = plan.step + 1


class Plans:
    """Plans as a rank reads them off the board.

    Args:
        board: The job's board.
        readers: Ranks that read every plan, over both worlds.
    """

    def __init__(self, board: Board, *, readers: int) -> None:
        self._board = board
        self._readers = readers
        self._known: dict[int, StepPlan] = {}
        self._error: str | None = None
        self._done: int | None = None

    def layout(self) -> SpaceNeed:
        """Slabs that the first plans need."""
        activation, gradient = self._board.get("layout", who="the planner")
        return SpaceNeed(activation=activation, gradient=gradient)

    def get(self, step: int) -> StepPlan:
        """Plan of a step, waited for; the end of the run where the planner failed at this step.

        A rank that looks ahead must not end what the others still train on: `check` raises the
        error, once every rank has come to the end.
        """
        if step not in self._known:
            value = self._board.get(f"plan/{step}", who="the planner")
            self._error = value.get("error")
            self._known[step] = (
                StepPlan(step=step, kind="end")
                if self._error is not None
                else StepPlan.from_json(value["plan"])
            )
        return self._known[step]

    def check(self) -> None:
        """Called at the end of the plans, when every step before it has closed on every rank.

        Raises:
            PlanError: The run ends because the planner failed.
        """
        if self._error is not None:
            raise PlanError(self._error)

    def peek(self, step: int) -> StepPlan | None:
        """Plan of a step if it is already there."""
        if step in self._known or self._board.has(f"plan/{step}"):
            return self.get(step)
        return None

    def forget(self, step: int) -> None:
        """Give up a plan that this rank has carried out."""
        del self._known[step]
        self._board.release(f"plan/{step}", [f"plan/{step}"], readers=self._readers)
        self._done = step

    def wait_for_others(self) -> None:
        """Wait until every rank has carried out, and saved, the steps that this rank has."""
        if self._done is not None:
            self._board.wait_deleted(f"plan/{self._done}", who="every rank")
