"""Exchange of reports: ranks agree on what happens to its gradients before an optimizer steps."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Literal

from flowtrain.steps import StepPlan
from flowtrain.train.control.store import JobStore
from flowtrain_core import FlowTrainError


class NonFiniteError(FlowTrainError, RuntimeError):
    """Loss or gradient of a step is not finite, and `train.nonfinite` is `abort`."""


@dataclass(frozen=True, kw_only=True, slots=True)
class StepReport:
    """Report of one world on a step, after it has summed its gradients.

    The planned N counts all target tokens of the plan; the real N leaves out skipped samples.

    Attributes:
        norm: Norm of the world's gradients of (sum of losses) / planned N.
        checksum: Checksum of the plan that the world executed.
        loss_sum: Sum of the losses of the target tokens; 0 in a world without the backbone.
        num_targets: Real number of target tokens N; 0 in a world without the backbone.
        seconds: Seconds of each kind of activity (`flowtrain.events.ACTIVITIES`) since the last
            report, mean over the ranks.
        rate: Learning rate that the encoder takes; None for that of its own schedule.
        peak_bytes: Memory that the first rank of the world has used at most; None if it is unknown.
    """

    norm: float
    checksum: int
    loss_sum: float = 0.0
    num_targets: int = 0
    seconds: dict[str, float] = field(default_factory=dict)
    rate: float | None = None
    peak_bytes: int | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class StepDecision:
    """Decision on the gradients of a step.

    Attributes:
        action: `apply` the gradients times `scale`, or `skip` the step.
        scale: Clipping factor, times planned N / real N where images were skipped.
        loss: Sum of losses / real N.
        grad_norm: Norm over both modules, before clipping; with `late`, of two steps.
        num_targets: Real N.
        seconds: Seconds of each kind of activity in each world, as in its report.
        norms: With `late`, the step and the norm of the gradients of each world that `grad_norm`
            is of.
        rate: As in the report of the backbone.
        peak_bytes: As in the report of each world.
    """

    action: Literal["apply", "skip"]
    scale: float
    loss: float
    grad_norm: float
    num_targets: int
    seconds: dict[str, dict[str, float]]
    norms: dict[str, tuple[int, float]] = field(default_factory=dict)
    rate: float | None = None
    peak_bytes: dict[str, int | None] = field(default_factory=dict)


class StepExchange:
    """Exchanges the reports of a step over the job's store, and decides from them.

    All ranks decide the same, except with `late`: this world then does not wait until the others
    have done their part of the step. It takes their reports of the step before; at the first step
    it waits.

    Args:
        store: The job's store.
        world: World of this rank.
        worlds: The worlds that report: the one with the backbone first, and then that of the
            encoder if it is another one and trains.
        clip_norm: Maximum norm over both modules, or None.
        nonfinite: What to do with a step whose loss or norm is not finite.
        late: Whether reports of other worlds may be those of the step before.
    """

    def __init__(
        self,
        store: JobStore,
        *,
        world: str,
        worlds: Sequence[str],
        clip_norm: float | None,
        nonfinite: Literal["abort", "skip"],
        late: bool = False,
    ) -> None:
        self._store = store
        self._world = world
        self._worlds = worlds
        self._clip_norm = clip_norm
        self._nonfinite = nonfinite
        self._late = late
        self._first: int | None = None
        self._checksums: dict[int, int] = {}
        self._corrections: dict[int, float] = {}
        self._own: tuple[int, StepReport] | None = None
        self._written: deque[str] = deque()

    def report(self, step: int, report: StepReport) -> None:
        """Publish the report of this rank's world; called by its first rank."""
        key = f"report/{step}/{self._world}"
        self._store.put(
            key,
            [
                report.norm.hex(),
                report.checksum,
                report.loss_sum.hex(),
                report.num_targets,
                report.seconds,
                None if report.rate is None else report.rate.hex(),
                report.peak_bytes,
            ],
        )
        self._written.append(key)
        self._own = step, report

    def decide(self, plan: StepPlan, checksum: int) -> StepDecision:
        """Wait for the reports of a step, and decide; called by every rank, for each step in turn.

        Args:
            plan: The plan that this rank executed.
            checksum: Its checksum.

        Raises:
            NonFiniteError: Loss or norm is not finite, and `nonfinite` is `abort`.
        """
        if self._first is None:
            self._first = plan.step
        self._checksums[plan.step] = checksum
        steps = {world: self._step_of(world, plan.step) for world in self._worlds}
        reports = {world: self._read(world, step) for world, step in steps.items()}
        if self._late and plan.step - 1 == self._first:
            # Those of other worlds were read at that step, too: their time counts once.
            own = {self._world: reports[self._world]}
            reports = {world: replace(r, seconds={}) for world, r in reports.items()} | own
        # All ranks have read the reports of two steps ago: their worlds have reported since.
        while len(self._written) > 2:
            self._store.delete(self._written.popleft())
        backbone = reports[self._worlds[0]]
        num_targets = backbone.num_targets
        correction = plan.num_targets / num_targets if num_targets else 0.0
        self._corrections[plan.step] = correction
        loss = backbone.loss_sum / num_targets if num_targets else 0.0
        norms = {
            world: (step, reports[world].norm * self._corrections[step])
            for world, step in steps.items()
        }
        for past in (self._checksums, self._corrections):
            past.pop(plan.step - 1, None)
        if self._late:
            # A world whose gradient of the step before was not finite has skipped that step, or
            # ends the run with an error that names it.
            counting = (n for step, n in norms.values() if step == plan.step or math.isfinite(n))
            norm = math.hypot(*counting)
        else:
            norm = math.hypot(*(report.norm for report in reports.values())) * correction
        finite = math.isfinite(loss) and math.isfinite(norm)
        if not finite and self._nonfinite == "abort":
            raise NonFiniteError(
                f"step {plan.step}: loss={loss}, gradient norm={norm} over {num_targets} target "
                f"tokens of samples {_first_of(plan.samples)}: not finite; lower optim.lr, or "
                "set train.nonfinite=skip to skip such steps"
            )
        clip = 1.0
        if finite and self._clip_norm is not None:
            # The constant of torch.nn.utils.clip_grad_norm_, to match a plain loop.
            clip = min(1.0, self._clip_norm / (norm + 1e-6))
        return StepDecision(
            action="apply" if finite and num_targets else "skip",
            scale=clip * correction,
            loss=loss,
            grad_norm=norm,
            num_targets=num_targets,
            seconds={world: report.seconds for world, report in reports.items()},
            norms=norms if self._late else {},
            rate=backbone.rate,
            peak_bytes={world: report.peak_bytes for world, report in reports.items()},
        )

    def _step_of(self, world: str, step: int) -> int:
        """Step of the report of a world that counts for a step."""
        is_late = self._late and world != self._world and step != self._first
        return step - 1 if is_late else step

    def _read(self, world: str, step: int) -> StepReport:
        if self._own is not None and self._own[0] == step and world == self._world:
            return self._own[1]
        norm, checksum, loss_sum, num_targets, seconds, rate, peak_bytes = self._store.get(
            f"report/{step}/{world}", writer=f"the {world} world"
        )
        if checksum != self._checksums[step]:
            raise RuntimeError(
                f"step {step}: the {world} world executed another plan (checksum {checksum:#x}, "
                f"here {self._checksums[step]:#x}); both must use one store"
            )
        return StepReport(
            norm=float.fromhex(norm),
            checksum=checksum,
            loss_sum=float.fromhex(loss_sum),
            num_targets=num_targets,
            seconds=seconds,
            rate=None if rate is None else float.fromhex(rate),
            peak_bytes=peak_bytes,
        )


def _first_of(samples: tuple[int, ...], limit: int = 8) -> str:
    shown = ", ".join(map(str, samples[:limit]))
    return shown if len(samples) <= limit else f"{shown}, ... ({len(samples)} in all)"
