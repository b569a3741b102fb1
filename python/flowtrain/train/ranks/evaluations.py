"""Evaluations: a rank's part in computing the loss of the held-out samples."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

from flowtrain.steps import FIRST_EVALUATION, StepPlan
from flowtrain.train.planning.planner import Planner
from flowtrain.train.planning.plans import PlanError
from flowtrain.train.ranks.backbone import BackbonePart
from flowtrain.train.ranks.context import RankContext
from flowtrain.train.ranks.encoder import EncoderPart


@dataclass(frozen=True, kw_only=True, slots=True)
class Evaluation:
    """Result of an evaluation, over all ranks.

    Attributes:
        loss: Mean over the target tokens; not a number if there are none.
        num_targets: Target tokens, without those of skipped samples.
        samples: Evaluated samples.
        skipped: Of these, samples with a skipped image.
        dropped: Samples that were left out, as they exceed a microbatch.
        truncated: Samples that were truncated to fit into one.
        seconds: Time that it took.
    """

    loss: float
    num_targets: int
    samples: int
    skipped: int
    dropped: int
    truncated: int
    seconds: float


class Evaluations:
    """Evaluates the model after the steps that the configuration names.

    All ranks execute the batches of an evaluation one after another, as they execute steps, but
    without backward and close.

    Args:
        context: Configuration, connections and services of this rank.
        encoder: The encoder's part, if this rank holds the encoder.
        backbone: The backbone's part, if this rank holds the backbone.
        make_room: Makes the segments of this rank large enough for a plan.
        planner: Told of each batch; None except on the first rank with the backbone.
    """

    def __init__(
        self,
        context: RankContext,
        *,
        encoder: EncoderPart | None,
        backbone: BackbonePart | None,
        make_room: Callable[[StepPlan], None],
        planner: Planner | None,
    ) -> None:
        self._context = context
        self._encoder = encoder
        self._backbone = backbone
        self._make_room = make_room
        self._planner = planner
        self._next = FIRST_EVALUATION
        self._stopped = False

    def run(self, step: int) -> Evaluation | None:
        """Evaluate after a step.

        Returns:
            The result, on ranks with the backbone. None if the run ends early on request: the rest
            of the evaluation is left out.

        Raises:
            PlanError: A held-out sample cannot be used.
        """
        if self._stopped:
            return None
        started = time.perf_counter()
        loss_sum = num_targets = num_skipped = 0.0
        samples = truncated = 0
        while (plan := self._plan()).kind == "eval":
            sums = self._batch(plan, version=step)
            loss_sum, num_targets, num_skipped = (
                a + b for a, b in zip((loss_sum, num_targets, num_skipped), sums, strict=True)
            )
            samples += len(plan.samples)
            truncated += plan.truncated
            self._done(plan)
        self._done(plan)
        if plan.error is not None:
            raise PlanError(plan.error)
        self._stopped = plan.stopped
        if self._backbone is None or self._stopped:
            return None
        world = self._context.world
        loss_sum, num_targets, num_skipped = world.sum([loss_sum, num_targets, num_skipped])
        return Evaluation(
            loss=loss_sum / num_targets if num_targets else float("nan"),
            num_targets=int(num_targets),
            samples=samples,
            skipped=int(num_skipped),
            dropped=plan.dropped,
            truncated=truncated,
            seconds=time.perf_counter() - started,
        )

    def _plan(self) -> StepPlan:
        with self._context.activity.account.doing("plan"):
            return self._context.plans.get(self._next)

    def _batch(self, plan: StepPlan, *, version: int) -> tuple[float, float, float]:
        """Execute a batch; return the sums of loss, target tokens and skipped samples."""
        if self._encoder is not None:
            self._encoder.read(plan)
        if self._backbone is not None:
            self._backbone.read(plan)
        self._make_room(plan)
        computing = self._context.computing
        if self._encoder is not None:
            with computing("encode", plan):
                self._encoder.evaluate(plan, version=version)
            self._encoder.forget(plan)
        if self._backbone is None:
            return 0.0, 0.0, 0.0
        with computing("backbone", plan):
            sums = self._backbone.evaluate(plan)
        return sums.loss_sum, sums.num_targets, sums.num_skipped

    def _done(self, plan: StepPlan) -> None:
        self._context.plans.forget(plan.step)
        self._next += 1
        if self._planner is not None:
            self._planner.step_started()
