"""Close of a step: both worlds reach the same verdict before either optimizer moves."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

from flowtrain.plan import StepPlan
from flowtrain.train.control.store import Board


class NonFiniteError(RuntimeError):
    """Loss or gradient of a step is not finite, and the run is told to abort then."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Report:
    """What one world knows of a step when its gradients are summed.

    Attributes:
        norm: Norm of the world's gradients, of (sum of losses) / planned N.
        loss_sum: Sum of the losses of the target tokens; the backbone's alone.
        num_targets: Target tokens that were really there; the backbone's alone.
        checksum: Checksum of the plan that the world carried out.
        wait_s: Wait for the other world, mean over the ranks.
        lr: Learning rate of the step; 0 for a frozen module.
    """

    norm: float
    checksum: int
    loss_sum: float = 0.0
    num_targets: int = 0
    wait_s: float = 0.0
    lr: float = 0.0


@dataclass(frozen=True, kw_only=True, slots=True)
class Verdict:
    """What both worlds do with a step.

    Attributes:
        action: `apply` the gradients times `scale`, or `skip` the step.
        scale: Clipping, and N planned / N real where images were skipped.
        loss: Sum of losses / real N.
        grad_norm: Norm over both modules, before clipping.
        num_targets: The real N.
        wait_s: Each world's wait for the other in this step.
        lr: Learning rate of the modules that train.
    """

    action: Literal["apply", "skip"]
    scale: float
    loss: float
    grad_norm: float
    num_targets: int
    wait_s: dict[str, float]
    lr: float = 0.0


class Closing:
    """Exchanges the reports of a step over the board.

    Args:
        board: The job's board.
        worlds: Worlds that train and the ranks of each; a frozen encoder has no say.
        clip_norm: Limit of the norm over both modules, or None.
        nonfinite: What a step without a finite loss or norm leads to.
    """

    def __init__(
        self,
        board: Board,
        *,
        worlds: dict[str, int],
        clip_norm: float | None,
        nonfinite: Literal["abort", "skip"],
    ) -> None:
        self._board = board
        self._worlds = worlds
        self._clip_norm = clip_norm
        self._nonfinite = nonfinite

    def report(self, world: str, step: int, report: Report) -> None:
        """Called by the leader of each world, once its gradients are summed."""
        self._board.put(
            f"close/{step}/{world}",
            [
                report.norm.hex(),
                report.checksum,
                report.loss_sum.hex(),
                report.num_targets,
                report.wait_s,
                report.lr.hex(),
            ],
        )

    def verdict(self, plan: StepPlan) -> Verdict:
        """Called by every rank; the same words on each.

        Raises:
            NonFiniteError: The step is not finite and the run aborts on that.
        """
        reports = {world: self._read(world, plan.step) for world in self._worlds}
        self._board.release(
            f"close/{plan.step}",
            [f"close/{plan.step}/{world}" for world in self._worlds],
            readers=sum(self._worlds.values()),
        )
        for world, report in reports.items():
            if report.checksum != plan.checksum():
                raise RuntimeError(
                    f"step {plan.step}: the {world} world carried out another plan (checksum "
                    f"{report.checksum:#x}, here {plan.checksum():#x}); both must read one store"
                )
        backbone = reports["backbone"]
        num_targets = backbone.num_targets
        unplanned = plan.num_targets / num_targets if num_targets else 0.0
        loss = backbone.loss_sum / num_targets if num_targets else 0.0
        norm = math.hypot(*(report.norm for report in reports.values())) * unplanned
        finite = math.isfinite(loss) and math.isfinite(norm)
        if not finite and self._nonfinite == "abort":
            raise NonFiniteError(
                f"step {plan.step}: loss={loss}, gradient norm={norm} over {num_targets} target "
                f"tokens of samples {_some(plan.samples)}: not finite; lower optim.lr, or set "
                "train.nonfinite=skip to pass over such steps"
            )
        clip = 1.0
        if finite and self._clip_norm is not None:
            # The constant is that of torch.nn.utils.clip_grad_norm_, so that a plain loop agrees.
            clip = min(1.0, self._clip_norm / (norm + 1e-6))
        return Verdict(
            action="apply" if finite and num_targets else "skip",
            scale=clip * unplanned,
            loss=loss,
            grad_norm=norm,
            num_targets=num_targets,
            wait_s={world: report.wait_s for world, report in reports.items()},
            lr=max(report.lr for report in reports.values()),
        )

    def _read(self, world: str, step: int) -> Report:
        norm, checksum, loss_sum, num_targets, wait_s, lr = self._board.get(
            f"close/{step}/{world}", who=f"the {world} world"
        )
        return Report(
            norm=float.fromhex(norm),
            checksum=checksum,
            loss_sum=float.fromhex(loss_sum),
            num_targets=num_targets,
            wait_s=wait_s,
            lr=float.fromhex(lr),
        )


def _some(samples: tuple[int, ...], limit: int = 8) -> str:
    shown = ", ".join(map(str, samples[:limit]))
    return shown if len(samples) <= limit else f"{shown}, ... ({len(samples)} in all)"
