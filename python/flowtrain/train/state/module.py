"""A part of a model, with its optimizer and schedule."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

import torch

from flowtrain.config.schema import RunConfig
from flowtrain.train.control.close import StepDecision
from flowtrain.train.control.gradients import GradientBuckets
from flowtrain.train.state.optimizer import build_optimizer, build_schedule

DTYPES = {
    "float32": torch.float32,
    "float64": torch.float64,
    "bfloat16": torch.bfloat16,
}


def _all(_name: str) -> bool:
    return True


@dataclass(slots=True)
class Module:
    """A part of a model, with its optimizer and schedule.

    Attributes:
        module: The model, which a colocated rank shares with its other part.
        holds: Whether a parameter or buffer of the model belongs to this part, by its name.
        optimizer: None if the part is frozen.
        schedule: None if the part is frozen.
        stepped: Steps that the optimizer has taken; at 0 it has no state yet.
        buckets: Sums of the gradients over the ranks, if the gradients are views of its buffers.
        parameters: Parameters of this part, in the model's order.
        trainable: Those that have gradients.
    """

    module: torch.nn.Module
    holds: Callable[[str], bool]
    optimizer: torch.optim.Optimizer | None = None
    schedule: torch.optim.lr_scheduler.LRScheduler | None = None
    stepped: int = 0
    buckets: GradientBuckets | None = None
    parameters: list[torch.nn.Parameter] = field(init=False)
    trainable: list[torch.nn.Parameter] = field(init=False)

    def __post_init__(self) -> None:
        self.parameters = [p for name, p in self.module.named_parameters() if self.holds(name)]
        self.trainable = [p for p in self.parameters if p.requires_grad]

    @staticmethod
    def build(
        module: torch.nn.Module,
        config: RunConfig,
        *,
        trains: bool,
        holds: Callable[[str], bool] = _all,
    ) -> Module:
        """Add optimizer and schedule to a part of a model, or freeze it."""
        if not trains:
            for name, parameter in module.named_parameters():
                if holds(name):
                    parameter.requires_grad_(False)
            return Module(module, holds)
        part = Module(module, holds)
        part.optimizer = build_optimizer(part.parameters, config.optim)
        part.schedule = build_schedule(part.optimizer, config.optim, steps=config.train.steps)
        return part

    def announce_last_backward(self) -> None:
        """The next backward pass is the last of the step: sums over the ranks start within it."""
        if self.buckets is not None:
            self.buckets.arm()

    def start_sums(self) -> None:
        """Start all sums over the ranks; every rank calls this in the same steps."""
        if self.buckets is not None:
            self.buckets.flush()

    def finish_sums(self) -> None:
        """Wait until the gradients are summed over the ranks."""
        if self.buckets is not None:
            self.buckets.finish()

    def norm(self) -> float:
        """Norm of the gradients, computed as torch.nn.utils.clip_grad_norm_ does."""
        grads = self._grads()
        return float(torch.nn.utils.get_total_norm(grads)) if grads else 0.0

    def apply(self, decision: StepDecision, *, saw_samples: bool) -> None:
        """Step the optimizer or drop the gradients; the schedule advances in both cases.

        Args:
            decision: What to do with the gradients.
            saw_samples: Whether any rank had samples for this part in this step; without any, its
                optimizer is not stepped, as in a plain loop.
        """
        if self.optimizer is None:
            return
        if decision.action == "apply" and saw_samples:
            grads = self._grads()
            if decision.scale != 1.0 and grads:
                torch._foreach_mul_(grads, decision.scale)
            self.optimizer.step()
            self.stepped += 1
        if self.buckets is not None:
            self.buckets.clear()
        else:
            self.optimizer.zero_grad(set_to_none=True)
        if self.schedule is not None:
            with _without_order_warning():
                self.schedule.step()

    def restore_schedule(self, steps: int) -> None:
        """Advance a new schedule by a number of steps."""
        if self.schedule is not None:
            with _without_order_warning():
                for _ in range(steps):
                    self.schedule.step()

    def _grads(self) -> list[torch.Tensor]:
        return [p.grad for p in self.trainable if p.grad is not None]

    @property
    def lr(self) -> float:
        return float(self.optimizer.param_groups[0]["lr"]) if self.optimizer else 0.0


@contextmanager
def _without_order_warning() -> Iterator[None]:
    """Silence PyTorch's warning when the schedule advances and the optimizer does not."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message=".*lr_scheduler.step.*optimizer.step.*")
        yield
