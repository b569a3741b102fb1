"""The update of a step: gradients are summed, the ranks agree, and the optimizers step."""

from __future__ import annotations

import math
import time
from collections import Counter
from collections.abc import Callable

from flowtrain.events import ACTIVITIES
from flowtrain.schedule import Action
from flowtrain.steps import StepPlan
from flowtrain.train.control.exchange import StepDecision, StepExchange, StepReport
from flowtrain.train.control.targets import TargetCheck
from flowtrain.train.planning.planner import Planner
from flowtrain.train.ranks.backbone import BackbonePart, StepSums
from flowtrain.train.ranks.context import RankContext
from flowtrain.train.ranks.encoder import EncoderPart
from flowtrain.train.ranks.memory import peak_bytes
from flowtrain.train.ranks.metrics import Metrics, StepTiming
from flowtrain.train.state.module import ModuleState


class Update:
    """Executes `norm`, `exchange` and `apply` of each step, in this order.

    Args:
        context: Connections and services of this rank.
        exchange: Exchanges the results of a step with all ranks.
        targets: Ends a run without targets.
        encoder: The encoder's part, if this rank holds the encoder.
        backbone: The backbone's part, if this rank holds the backbone.
        metrics: Log of the run; None except on the first rank with the backbone.
        planner: Told of the times of slots; None except on that rank.
        rate: The learning rate of the encoder in the present step; None if it has a schedule.
    """

    def __init__(
        self,
        context: RankContext,
        exchange: StepExchange,
        targets: TargetCheck,
        *,
        encoder: EncoderPart | None,
        backbone: BackbonePart | None,
        metrics: Metrics | None,
        planner: Planner | None,
        rate: Callable[[], float] | None = None,
    ) -> None:
        self._context = context
        self._encoder = encoder.module if encoder is not None and encoder.trains else None
        self._backbone = backbone
        self._metrics = metrics
        self._planner = planner
        self._exchange = exchange
        self._targets = targets
        self._rate = rate
        self._has_cache = context.flow.cache.path is not None
        self._events = context.activity.events
        self._norm = 0.0
        self._sums: StepSums | None = None
        self._decision: StepDecision | None = None
        # Samples without targets, without a place, and without some of their targets.
        self.left_out: Counter[str] = Counter()
        self.restart()

    def restart(self) -> None:
        """The next step begins now: time before this does not count for it."""
        self._reported = self._events.seconds()
        self._updated_at = time.perf_counter()

    def norm(self, plan: StepPlan, _: Action) -> None:
        """Wait until the gradients are summed over the world, and take their norm."""
        modules = self._modules
        with self._events.span("sums"):
            for module in modules:
                # Without an image in the step, the encoder has nothing to sum.
                if plan.items or module is not self._encoder:
                    module.parallel.finish()
        self._norm = math.hypot(*(module.norm() for module in modules))

    def exchange(self, plan: StepPlan, _: Action) -> None:
        """Sum the results over the world, and agree with all ranks on the step.

        Raises:
            NonFiniteError: Loss or norm is not finite, and `train.nonfinite` is `abort`.
            NoTargetError: This step and those before it had no target token.
        """
        context = self._context
        seconds, self._sums = self._sum_over_ranks()
        if self.is_abandoned:
            return
        report = StepReport(
            norm=self._norm,
            checksum=context.plans.checksum(plan.step),
            loss_sum=self._sums.loss_sum if self._sums is not None else 0.0,
            num_targets=int(self._sums.num_targets) if self._sums is not None else 0,
            seconds=seconds,
            rate=None if self._rate is None else self._rate(),
            peak_bytes=peak_bytes(context.world.device),
        )
        if context.world.reports:
            self._exchange.report(plan.step, report)
        self._decision = self._exchange.decide(plan, report.checksum)
        self._targets.stepped(plan, self._decision.num_targets)

    @property
    def is_abandoned(self) -> bool:
        """Whether some rank lacks rows of the step, which must not be applied then."""
        return self._sums is not None and self._sums.is_abandoned

    def apply(self, plan: StepPlan, _: Action) -> None:
        """Step the optimizers, and log the step."""
        assert self._decision is not None
        if self._encoder is not None and self._decision.rate is not None:
            self._encoder.set_rate(self._decision.rate)
        for module in self._modules:
            module.apply(self._decision, saw_images=bool(plan.items))
        if self._sums is None:
            return
        skipped = int(self._sums.num_skipped)
        self.left_out.update(skipped=skipped, dropped=plan.dropped, truncated=plan.truncated)
        if self._planner is not None and self._sums.slot_seconds:
            self._planner.measured(plan, self._sums.slot_seconds)
        if self._metrics is not None:
            with self._events.span("log"):
                self._log(self._metrics, plan, self._decision, self._sums)

    @property
    def grad_norm(self) -> float:
        """Gradient norm of the last step over both modules, before clipping."""
        assert self._decision is not None
        return self._decision.grad_norm

    @property
    def _modules(self) -> list[ModuleState]:
        """The modules that train, in the order in which their sums start."""
        modules = [self._backbone.module] if self._backbone is not None else []
        return [*modules, self._encoder] if self._encoder is not None else modules

    def _sum_over_ranks(self) -> tuple[dict[str, float], StepSums | None]:
        """Results of the step, summed over the world, and what its ranks did since the last update.

        Returns:
            Mean seconds of each kind of activity that there was, and the sums of the results.
        """
        context, before = self._context, self._reported
        world = context.world
        self._reported = self._events.seconds()
        spent = [self._reported[kind] - before[kind] for kind in ACTIVITIES]
        own = self._backbone.sums if self._backbone is not None else None
        results: list[float] = []
        if own is not None:
            results = [own.loss_sum, own.num_targets, own.num_skipped]
            results += [*own.ages, *own.slot_seconds]
        summed = world.sum([*spent, *results])
        seconds = {k: s / world.size for k, s in zip(ACTIVITIES, summed, strict=False) if s > 0}
        if own is None:
            return seconds, None
        loss_sum, num_targets, num_skipped, *others = summed[len(ACTIVITIES) :]
        # Apart, so that the sums above are rounded as without a cache.
        [num_hits] = world.sum([own.num_hits]) if self._has_cache else [0.0]
        elastic = context.board is not None
        [abandoned] = world.sum([own.is_abandoned]) if elastic else [0.0]
        return seconds, StepSums(
            loss_sum=loss_sum,
            num_targets=num_targets,
            num_skipped=num_skipped,
            num_hits=num_hits,
            ages=others[: len(own.ages)],
            slot_seconds=others[len(own.ages) :],
            is_abandoned=abandoned > 0,
        )

    def _log(
        self, metrics: Metrics, plan: StepPlan, decision: StepDecision, sums: StepSums
    ) -> None:
        now = time.perf_counter()
        timing = StepTiming(
            seconds=now - self._updated_at,
            pool=self._context.pool.stats(),
            hits=int(sums.num_hits) if self._has_cache else None,
        )
        self._updated_at = now
        metrics.step(
            plan,
            decision,
            skipped=int(sums.num_skipped),
            ages=[int(age) for age in sums.ages],
            timing=timing,
        )
