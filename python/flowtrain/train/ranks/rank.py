"""A rank: executes the plans with the modules that it holds."""

from __future__ import annotations

import math
import time
from typing import Any

from flowtrain.steps import SpaceNeed, StepPlan
from flowtrain.train.control.account import KINDS
from flowtrain.train.control.close import StepClose, StepDecision, StepReport
from flowtrain.train.control.targets import TargetCheck
from flowtrain.train.planning.planner import Planner
from flowtrain.train.ranks.backbone import BackbonePart, StepSums
from flowtrain.train.ranks.context import RankContext
from flowtrain.train.ranks.encoder import EncoderPart
from flowtrain.train.ranks.evaluations import Evaluations
from flowtrain.train.ranks.metrics import Metrics, StepTiming
from flowtrain.train.ranks.profiler import Profiler
from flowtrain.train.state.checkpoint import Checkpoints
from flowtrain.train.state.module import Module
from flowtrain_core.edges import Explanation


class Rank:
    """Executes steps with the encoder, the backbone, or both.

    Let F be the forward of the encoder, S the slots of the backbone (forward and backward), B the
    backward of the encoder, and k = `flow.staleness`. Step s runs S(s), F(s + k), B(s), close(s),
    after F of the steps before s + k, or F(s) if k is 0. Each rank leaves out what it does not
    hold. In `frozen` there is no B, and a rank without the backbone has no close: it runs ahead as
    far as plans and pool allow. An evaluation follows the close of its step.

    Args:
        context: Configuration, connections and services of this rank.
        checkpoints: Saves the modules of this rank.
        encoder: The encoder's part, if this rank holds the encoder.
        backbone: The backbone's part, if this rank holds the backbone.
        metrics: Log of the run; None except on the first rank with the backbone.
        planner: Told of each step; None except on that rank.
        eval_planner: Planner of the evaluations; None except on that rank, and without evaluations.
    """

    def __init__(
        self,
        context: RankContext,
        checkpoints: Checkpoints,
        *,
        encoder: EncoderPart | None,
        backbone: BackbonePart | None,
        metrics: Metrics | None,
        planner: Planner | None,
        eval_planner: Planner | None,
    ) -> None:
        self._context = context
        self._checkpoints = checkpoints
        self._encoder = encoder
        self._backbone = backbone
        self._parts = [part for part in (encoder, backbone) if part is not None]
        self._metrics = metrics
        self._planner = planner
        self._evaluations = Evaluations(
            context,
            encoder=encoder,
            backbone=backbone,
            make_room=self._make_room,
            planner=eval_planner,
        )
        self._ahead = context.config.flow.staleness
        self._close_exchange = _close_exchange(context)
        self._targets = TargetCheck(context.config.train.steps)
        self._sizes = SpaceNeed(activation=0, gradient=0)
        self._forward = 0
        self._forward_error: Exception | None = None
        self._account = context.activity.account
        self._profiler = Profiler(context.config, f"{context.world.name}.{context.world.rank}")
        self._reported = self._account.seconds()
        self._started_at = 0.0
        self._closed_at = 0.0

    def run(self, first: int) -> None:
        """Run from step `first` to the end of the plans; save if that is early on request."""
        self._resize(self._context.segments.initial(self._context.plans.first_need()))
        self._account.restart()
        self._reported = self._account.seconds()
        self._started_at = time.time()
        self._closed_at = time.perf_counter()
        self._forward = step = first
        last: StepPlan | None = None
        while (plan := self._plan(step)).kind == "train":
            self._profiler.begin_step(step)
            self._step(plan)
            last = plan
            step += 1
        self._profiler.close()
        if plan.stopped and last is not None and not self._checkpoints.is_due(last):
            with self._account.doing("checkpoint"):
                self._checkpoints.save(last)
        for part in self._parts:
            part.drain()

    def _step(self, plan: StepPlan) -> None:
        doing = self._account.doing
        self._forward_to(plan.step + max(self._ahead - 1, 0), at=plan.step)
        sums = None
        if self._backbone is not None:
            self._backbone.read(plan)
        if self._planner is not None:
            self._planner.step_started()
        if self._backbone is not None:
            self._make_room(plan)
            with self._context.computing("backbone", plan):
                sums = self._backbone.slots(plan)
        self._forward_to(plan.step + self._ahead, at=plan.step)
        if self._encoder is not None and self._encoder.trains:
            with self._context.computing("encode", plan):
                self._encoder.backward(plan)
        if self._backbone is not None or self._trains_encoder:
            with doing("close"):
                self._close(plan, sums)
        loss = self._evaluate(plan)
        if self._checkpoints.is_due(plan):
            with doing("checkpoint"):
                self._checkpoints.save(plan, loss)
        with doing("plan"):
            self._context.plans.forget(plan.step)
        if self._encoder is not None:
            self._encoder.forget(plan)

    def account(self) -> dict[str, Any]:
        """Time of this rank in `run`, by kind of activity, for the summary of the run."""
        return {
            "started_at": self._started_at,
            "seconds": self._account.seconds(),
            "cpu_seconds": self._account.cpu_seconds(),
            "planner_cpu_seconds": self._planner.cpu_seconds if self._planner is not None else 0.0,
        }

    def _plan(self, step: int) -> StepPlan:
        with self._account.doing("plan"):
            return self._context.plans.get(step)

    def edges(self) -> list[Explanation]:
        """Current state of the edges from and to this rank."""
        return [edge for part in self._parts for edge in part.edges()]

    @property
    def _trains_encoder(self) -> bool:
        return self._encoder is not None and self._encoder.trains

    def _forward_to(self, last: int, *, at: int) -> None:
        """Run the encoder's forward up to step `last`, or to the end of the plans.

        Args:
            last: Step.
            at: Step that closes next. An error of a later step is raised once that step is next.
        """
        if self._encoder is None:
            return
        while (
            self._forward_error is None
            and self._forward <= last
            and (plan := self._plan(self._forward)).kind == "train"
        ):
            try:
                with self._account.doing("plan"):
                    self._encoder.read(plan)
                self._make_room(plan)
                with self._context.computing("encode", plan):
                    self._encoder.forward(plan, version=at)
                self._forward += 1
            except Exception as error:
                self._forward_error = error
        if self._forward_error is not None and self._forward == at:
            raise self._forward_error

    def _make_room(self, plan: StepPlan) -> None:
        """Make the segments large enough for a plan."""
        self._resize(self._context.segments.sizes_for(plan, self._sizes))

    def _resize(self, sizes: SpaceNeed) -> None:
        for part in self._parts:
            part.resize(sizes)
        self._sizes = sizes

    def _close(self, plan: StepPlan, sums: StepSums | None) -> None:
        """Sum gradients over the world, agree with all ranks on the step, and apply it."""
        world = self._context.world
        seconds, sums = self._sum_over_ranks(sums)
        saw_images = bool(plan.items)
        trained: list[Module] = []
        summed: list[Module] = []
        if self._backbone is not None:
            trained.append(self._backbone.module)
            summed.append(self._backbone.module)
        if self._encoder is not None and self._encoder.trains:
            trained.append(self._encoder.module)
            if saw_images:
                summed.append(self._encoder.module)
        with self._account.doing("reduce"):
            for module in summed:
                module.finish_sums()
        with self._account.doing("optimizer"):
            norm = math.hypot(*(module.norm() for module in trained))
        report = StepReport(
            norm=norm,
            checksum=self._context.plans.checksum(plan.step),
            loss_sum=sums.loss_sum if sums is not None else 0.0,
            num_targets=int(sums.num_targets) if sums is not None else 0,
            seconds=seconds,
        )
        if world.is_leader:
            self._close_exchange.report(plan.step, report)
        decision = self._close_exchange.decide(plan, report.checksum)
        self._targets.closed(plan, decision.num_targets)
        with self._context.computing("optimizer", plan):
            for module in trained:
                module.apply(decision, saw_images=saw_images)
        if self._planner is not None and sums is not None and sums.slot_seconds:
            self._planner.measured(plan, sums.slot_seconds)
        if self._metrics is not None and sums is not None:
            with self._account.doing("log"):
                self._log(plan, decision, sums)

    def _evaluate(self, plan: StepPlan) -> float | None:
        """Evaluate the model after a step, if that is due.

        Returns:
            The loss, on ranks with the backbone; None without an evaluation.
        """
        if not self._context.config.is_evaluated(plan.step):
            return None
        evaluation = self._evaluations.run(plan.step)
        # The step that follows does not count this time.
        self._reported = self._account.seconds()
        self._closed_at = time.perf_counter()
        if self._metrics is not None:
            self._metrics.evaluation(plan.step, evaluation)
        return None if evaluation is None else evaluation.loss

    def _sum_over_ranks(self, sums: StepSums | None) -> tuple[dict[str, float], StepSums | None]:
        """Results of the step, summed over the world, and what its ranks did since the last close.

        Returns:
            Mean seconds of each kind of activity that there was, and the sums of the results.
        """
        world, before = self._context.world, self._reported
        self._reported = self._account.seconds()
        spent = [self._reported[kind] - before[kind] for kind in KINDS]
        results = []
        if sums is not None:
            results = [sums.loss_sum, sums.num_targets, sums.num_skipped]
            results += [*sums.ages, *sums.slot_seconds]
        summed = world.sum([*spent, *results])
        seconds = {k: s / world.size for k, s in zip(KINDS, summed, strict=False) if s > 0}
        if sums is None:
            return seconds, None
        loss_sum, num_targets, num_skipped, *others = summed[len(KINDS) :]
        return seconds, StepSums(
            loss_sum=loss_sum,
            num_targets=num_targets,
            num_skipped=num_skipped,
            ages=others[: len(sums.ages)],
            slot_seconds=others[len(sums.ages) :],
        )

    def _log(self, plan: StepPlan, decision: StepDecision, sums: StepSums) -> None:
        assert self._metrics is not None
        now = time.perf_counter()
        timing = StepTiming(seconds=now - self._closed_at, pool=self._context.pool.stats())
        self._closed_at = now
        self._metrics.step(
            plan,
            decision,
            skipped=int(sums.num_skipped),
            ages=[int(age) for age in sums.ages],
            timing=timing,
        )


def _close_exchange(context: RankContext) -> StepClose:
    """The exchange that closes each step of a run."""
    config, layout, world = context.config, context.layout, context.world
    reporting = [
        world.name
        for world in layout.worlds
        if "backbone" in world.modules or config.flow.mode != "frozen"
    ]
    return StepClose(
        context.store,
        world=world.name,
        worlds=reporting,
        clip_norm=config.optim.clip_norm,
        nonfinite=config.train.nonfinite,
        # The encoder is late in `bounded`, and so may be its report.
        late=config.flow.mode == "bounded" and world.name == "backbone",
    )
